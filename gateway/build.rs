//! Builds the shipped policies, and compresses what the binary carries.

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER as ADAPTER;

const SHIPPED: [&str; 8] = ["fallback", "bearer", "oauth", "pin", "redact", "schema", "shape", "interceptor"];

/// Generated code of the kit: half a megabyte of text.
const BINDINGS: [&str; 3] = ["calls", "connection", "credentials"];

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the gateway lies below the root")?;
    weir_guest_build::rerun_if_changed(&[&root.join("guest"), &root.join("wit")]);
    for name in SHIPPED {
        // The whole error: cargo shows the Debug form of what main returns, which is hard to read.
        if let Err(error) = weir_guest_build::component(&root.join("guest/policies").join(name), Path::new(&out)) {
            return Err(error.to_string().into());
        }
        let wasm = Path::new(&out).join(name).with_extension("wasm");
        compress(&fs::read(&wasm)?, &wasm.with_extension("wasm.gz"))?;
    }
    for module in BINDINGS {
        let name = format!("{module}.rs");
        compress(&fs::read(root.join("guest/kit/src/bindings").join(&name))?, &Path::new(&out).join(name + ".gz"))?;
    }
    compress(ADAPTER, &Path::new(&out).join("adapter.wasm.gz"))?;
    Ok(())
}

fn compress(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut encoder = GzEncoder::new(File::create(to)?, Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish().map(drop)
}
