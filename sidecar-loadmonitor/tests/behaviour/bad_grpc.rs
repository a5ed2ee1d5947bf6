//! Engines whose gRPC does what none should: none of them may delay or spoil another's report.

use testbed::fake_engine::{Control, EngineOptions, FakeEngine, Probe, Runtime};
use tokio::{io::AsyncWriteExt, time::sleep};

use crate::{
    fakes::{PATIENCE, Route, engine, serve_raw},
    misbehaviour::spares_the_others,
};

#[tokio::test]
async fn get_loads_that_hangs_fails_or_says_too_much() {
    for probe in [
        Probe::Stall,
        Probe::Status { status: 501 },
        Probe::Status { status: 500 },
        Probe::Huge { bytes: 50 << 20 },
        Probe::Garbage,
    ] {
        let engine = FakeEngine::start(EngineOptions { runtime: Runtime::SglangGrpc, ..EngineOptions::instant() });
        engine.control(Control { loads: Some(probe), ..Control::default() });
        spares_the_others(&format!("grpc://{}", engine.address())).await;
    }
}

#[tokio::test]
async fn something_else_that_listens_where_grpc_was_said_to_be() {
    let silent = serve_raw(|stream, _| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    spares_the_others(&format!("grpc://{silent}")).await;
    let rude = serve_raw(|mut stream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    })
    .await;
    spares_the_others(&format!("grpc://{rude}")).await;
    // Speaks HTTP/2, but has no such service.
    let other = engine(&Route::new(404, ""), &Route::new(404, "")).await;
    spares_the_others(&format!("grpc://{other}")).await;
}
