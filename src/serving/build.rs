//! Compiles the serving frames without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=protocol/serving.proto");
    let descriptors = protox::compile(["serving.proto"], ["protocol"])?;
    prost_build::Config::new()
        .bytes(["."])
        .btree_map([".blockwire.serving.Sampling.logit_bias"])
        .compile_fds(descriptors)?;
    Ok(())
}
