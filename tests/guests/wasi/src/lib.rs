//! A guest as other languages build them: it comes with WASI, and looks for a machine behind it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what a guest prints is what is tested")]

use std::{
    collections::HashMap,
    env, fs,
    io::{self, Write},
    net::TcpStream,
    time::{SystemTime, UNIX_EPOCH},
};

use weir_policy::{Attempt, Connection, Settings, Step, Upstream};

struct Wasi;

// The version is that of the standard library, whose import this is as well.
#[link(wasm_import_module = "wasi:io/streams@0.2.6")]
#[allow(unsafe_code, reason = "a guest can call it with any handle, so a test does")]
unsafe extern "C" {
    #[link_name = "[method]output-stream.check-write"]
    safe fn room(handle: i32, answer: &mut [u8; 16]);
}

impl Connection for Wasi {
    fn next(to: Upstream, _: Vec<Attempt>) -> Step {
        let _ = io::stdout().write_all(b"on the way to the machine\n");
        for line in 0..Settings::of(&to).number("lines").unwrap_or(0) {
            println!("{line}");
        }
        if let Some(handle) = Settings::of(&to).number("handle") {
            room(handle as i32, &mut [0; 16]);
        }
        assert!(Settings::of(&to).flag("panic").is_none(), "on purpose");
        // A hash map asks for randomness when it is made.
        let seen = HashMap::from([
            ("variables", env::vars_os().count()),
            ("arguments", env::args_os().count()),
            ("files", usize::from(fs::read("/etc/passwd").is_ok() || fs::read_dir("/").is_ok())),
            ("sockets", usize::from(TcpStream::connect("127.0.0.1:80").is_ok_and(|_| true))),
            ("seconds", SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() as usize)),
        ]);
        let mut found: Vec<_> = seen.into_iter().filter(|(_, count)| *count > 0).map(|(name, _)| name).collect();
        found.sort_unstable();
        Step::stop(format!("found {found:?}"))
    }
}

weir_policy::export_connection!(Wasi);
