//! Builds every guest beside this file, and the examples that the tests use.

use std::{env, error::Error, path::Path};

const GUESTS: [&str; 12] = [
    "bomb",
    "curious",
    "flood",
    "import-fuzzer",
    "judge",
    "leaker",
    "liar",
    "minimal",
    "misfit",
    "spin",
    "stranger",
    "trap",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let (here, out) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(&out));
    let root = here.parent().and_then(Path::parent).ok_or("the guests lie below the root")?;
    weir_guest_build::rerun_if_changed(&[here, &root.join("guest"), &root.join("wit")]);
    for guest in GUESTS {
        weir_guest_build::component(&here.join(guest), out).map_err(|error| error.to_string())?;
    }
    for example in ["mask-cards", "token-service"] {
        let example = root.join("guest/examples").join(example);
        weir_guest_build::component(&example, out).map_err(|error| error.to_string())?;
    }
    weir_guest_build::wasi_component(&here.join("wasi"), out).map_err(|error| error.to_string())?;
    Ok(())
}
