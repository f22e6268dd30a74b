#![no_main]

#[path = "../../../src/sealed_state.rs"]
mod sealed_state;

use sealed_state::SealedState;

#[path = "../seal_check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::seal(input));
