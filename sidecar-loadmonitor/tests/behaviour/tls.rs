//! Engines behind TLS: whose certificates are believed, and what is said of the others.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use testbed::fake_engine::{EngineOptions, FakeEngine, Runtime};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::fakes::{Ingest, binary, patient_sidecar};

/// An authority of our own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mut parameters = CertificateParams::new(vec![]).unwrap();
        let name = format!("authority {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate in a file.
    fn file(&self, name: &str) -> String {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, self.0.pem()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A port where `engine` is reached over TLS, with a certificate for `name`.
    async fn in_front_of(&self, engine: &FakeEngine, name: &str) -> u16 {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, engine) = (listener.local_addr().unwrap().port(), engine.address());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, engine) = (acceptor.clone(), engine.clone());
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let mut server = TcpStream::connect(engine).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        port
    }
}

fn engine(runtime: Runtime) -> FakeEngine {
    FakeEngine::start(EngineOptions { runtime, ..EngineOptions::instant() })
}

#[tokio::test]
async fn engines_are_believed_whose_authority_is_named() {
    let authority = Authority::new();
    let file = authority.file("authority.pem");
    for (runtime, scheme) in [(Runtime::Sglang, "https"), (Runtime::SglangGrpc, "grpcs")] {
        let engine = engine(runtime);
        let url = format!("{scheme}://localhost:{}", authority.in_front_of(&engine, "localhost").await);
        let (ingest, push) = Ingest::start().await;
        let arguments = ["--worker", &url, "--push-url", &push, "--ca-file", &file];
        let _sidecar = patient_sidecar(&[&arguments[..], &["--load-monitor-interval", "0.2"]].concat());
        ingest.wait_report(&url, |report| report.load.is_some()).await;
    }
}

#[tokio::test]
async fn a_wrong_certificate_is_called_by_its_name() {
    let authority = Authority::new();
    let file = authority.file("another-authority.pem");
    for (runtime, scheme) in [(Runtime::Sglang, "https"), (Runtime::SglangGrpc, "grpcs")] {
        let engine = engine(runtime);
        let stranger = format!("{scheme}://localhost:{}", Authority::new().in_front_of(&engine, "localhost").await);
        let impostor = format!("{scheme}://localhost:{}", authority.in_front_of(&engine, "elsewhere").await);
        for (url, why) in [(stranger, "UnknownIssuer"), (impostor, "elsewhere")] {
            let output = binary(&["check", &url, "--ca-file", &file]).output().await.unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("shows a certificate that is not believed") && text.contains(why), "{text}");
        }
    }
}
