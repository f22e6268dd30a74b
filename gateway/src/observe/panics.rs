//! A panic as a line of the log: the usual hook writes to standard error itself, and waits there for whoever reads it.

use std::{
    env,
    panic::{self, PanicHookInfo},
    sync::Arc,
    thread,
    time::Duration,
};

use tracing::Level;

use super::writer::Shared;

/// How long a panic waits for its line to be written: the process may end with it.
const PATIENCE: Duration = Duration::from_millis(200);

/// Has panics logged. With `RUST_BACKTRACE` the usual hook prints its backtrace as well.
pub(super) fn log(log: Arc<Shared>) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !tracing::enabled!(target: "weir::panic", Level::ERROR) {
            return usual(panic);
        }
        write(panic);
        log.flush(PATIENCE, false);
        if env::var_os("RUST_BACKTRACE").is_some() {
            usual(panic);
        }
    }));
}

fn write(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let place = panic.location().map(tracing::field::display);
    let message = panic.payload_as_str().unwrap_or("without a message");
    tracing::error!(target: "weir::panic", thread = thread.name(), place, "panicked: {message}");
}
