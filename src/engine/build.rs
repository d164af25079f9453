//! Compiles the wire's protobuf bodies without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=wire/wire.proto");
    let descriptors = protox::compile(["wire.proto"], ["wire"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
