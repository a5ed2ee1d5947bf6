//! Workers named on the command line.

use std::sync::Arc;

use futures_util::{
    StreamExt,
    stream::{BoxStream, once},
};

use super::{Found, Source};
use crate::{config::Worker, spec::WorkerSpec};

/// Names the same workers for ever.
#[derive(Debug)]
pub(crate) struct List(pub(crate) Vec<Worker>);

impl Source for List {
    fn name(&self) -> String {
        "--worker".to_owned()
    }

    fn sets(self: Box<Self>) -> BoxStream<'static, Vec<Found>> {
        let found = |worker: Worker| {
            let spec = Arc::new(WorkerSpec { url: worker.url().to_owned(), ..WorkerSpec::default() });
            Found { worker, spec, verdict: None }
        };
        once(async move { self.0.into_iter().map(found).collect() }).boxed()
    }
}
