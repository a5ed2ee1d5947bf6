//! Compiles the protocols of the engines' gRPC services; `protox` is a compiler for them that cargo can build.

const PROTOCOLS: [&str; 5] = ["sglang.proto", "vllm.proto", "tokenspeed.proto", "trtllm.proto", "mlx.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Messages only: one generic call serves all methods.
    prost_build::Config::new().compile_fds(protox::compile(PROTOCOLS, ["proto"])?)?;
    Ok(())
}
