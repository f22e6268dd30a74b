#![no_main]

#[path = "../../../src/seal.rs"]
mod seal;

use seal::Seal;

#[path = "../seal_check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::seal(input));
