//! An external processor (Envoy's `ext_proc`) that takes whole bodies and names an engine without a look at them: the
//! least that a picker outside of Envoy can cost.

mod messages;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use clap::Parser;
use http::{Request, Response};
use messages::{
    Answer, Common, Header, HeaderMutation, HeaderOption, Outer, Piece, ProcessingRequest, ProcessingResponse,
};
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Above the body that Envoy buffers.
const LARGEST_MESSAGE: usize = 16 << 20;
const OVERWRITE: i32 = 2;

#[derive(Parser)]
#[command(about = "An ext_proc server that names one engine after the other")]
struct Arguments {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,

    /// `ip:port` of an engine; several are allowed.
    #[arg(long = "engine", required = true)]
    engines: Vec<SocketAddr>,
}

/// The engines, in turns.
#[derive(Clone)]
struct Picker {
    engines: Arc<[Bytes]>,
    next: Arc<AtomicUsize>,
}

impl Picker {
    fn answer(&self, request: ProcessingRequest) -> ProcessingResponse {
        let answer = match request.piece {
            Some(Piece::Headers(_)) => Some(Answer::Headers(Outer { common: Some(Common { headers: None }) })),
            Some(Piece::Body(_)) => {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.engines.len().max(1);
                let value = self.engines.get(turn).cloned().unwrap_or_default();
                let header = Header { name: DESTINATION.to_owned(), value };
                let set = vec![HeaderOption { header: Some(header), action: OVERWRITE }];
                Some(Answer::Body(Outer { common: Some(Common { headers: Some(HeaderMutation { set }) }) }))
            }
            None => None,
        };
        ProcessingResponse { answer }
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;
type Soon<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The one method, `Process`: a stream per HTTP request.
impl StreamingService<ProcessingRequest> for Picker {
    type Response = ProcessingResponse;
    type ResponseStream = Answers;
    type Future = Soon<tonic::Response<Answers>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let picker = self.clone();
        let answers = request.into_inner().map(move |request| Ok(picker.answer(request?)));
        Box::pin(async { Ok(tonic::Response::new(Box::pin(answers) as Answers)) })
    }
}

impl NamedService for Picker {
    const NAME: &'static str = "envoy.service.ext_proc.v3.ExternalProcessor";
}

impl Service<Request<Body>> for Picker {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Soon<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let picker = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST_MESSAGE);
            Ok(grpc.streaming(picker, request).await)
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let engines = arguments.engines.iter().map(|engine| Bytes::from(engine.to_string())).collect();
    let picker = Picker { engines, next: Arc::default() };
    Ok(tonic::transport::Server::builder().add_service(picker).serve(arguments.listen).await?)
}
