//! Builds the shipped policies, which the binary carries.

use std::{env, error::Error, path::Path};

const SHIPPED: [&str; 8] = ["fallback", "bearer", "oauth", "pin", "redact", "schema", "shape", "interceptor"];

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the gateway lies below the root")?;
    weir_guest_build::rerun_if_changed(&[&root.join("guest"), &root.join("wit")]);
    for name in SHIPPED {
        // The whole error: cargo shows the Debug form of what main returns, which is hard to read.
        if let Err(error) = weir_guest_build::component(&root.join("guest/policies").join(name), Path::new(&out)) {
            return Err(error.to_string().into());
        }
    }
    Ok(())
}
