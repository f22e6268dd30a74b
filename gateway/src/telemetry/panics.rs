//! A panic as a line of the log: the usual hook writes to standard error itself, and waits there for whoever reads it.

use std::{
    env,
    panic::{self, PanicHookInfo},
    sync::Arc,
    thread,
    time::Duration,
};

use tracing::Level;

use super::writer::WriterShared;

/// How long a panic waits for its line to be written: the process may end with it.
const PATIENCE: Duration = Duration::from_millis(200);

/// Has panics logged. With `RUST_BACKTRACE` the usual hook prints its backtrace as well.
pub(super) fn log(log: Arc<WriterShared>) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !tracing::enabled!(target: "weir::panic", Level::ERROR) {
            return usual(panic);
        }
        write(panic);
        // What follows may write to the terminal by itself, or end the process.
        log.show(None);
        log.flush(PATIENCE, false);
        if env::var_os("RUST_BACKTRACE").is_some() {
            usual(panic);
        }
    }));
}

fn write(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let location = panic.location().map(tracing::field::display);
    let message = panic.payload_as_str().unwrap_or("without a message");
    tracing::error!(target: "weir::panic", thread = thread.name(), location, "panicked: {message}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::{env, process::Command, thread};

    /// Tells the child what to do.
    const CHILD: &str = "WEIR_TEST_PANIC";

    /// Panics where it is told to, with a log.
    #[test]
    fn child() {
        if env::var_os(CHILD).is_none() {
            return;
        }
        let _log = crate::telemetry::start("info");
        thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("on\npurpose")).unwrap().join().unwrap_err();
    }

    #[test]
    fn a_panic_is_one_line_of_the_log() {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "telemetry::panics::tests::child", "--nocapture"]).env(CHILD, "1");
        child.env_remove("RUST_BACKTRACE").env_remove("RUST_LOG");
        let said = String::from_utf8(child.output().unwrap().stderr).unwrap();
        let lines: Vec<serde_json::Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let [line] = &lines[..] else { panic!("{said}") };
        assert_eq!((&line["level"], &line["fields"]["thread"]), (&"ERROR".into(), &"worker".into()), "{said}");
        assert_eq!(line["fields"]["message"], "panicked: on\npurpose");
        assert!(line["fields"]["location"].as_str().unwrap().contains("panics.rs:"), "{said}");
        assert_eq!(said.matches("purpose").count(), 1, "{said}");
    }
}
