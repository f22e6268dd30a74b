//! The steps on the way to an upstream: each ends with an outcome, after some time.
//!
//! `weir test` shows them. They are noted by the code that the gateway itself takes, for whoever listens in the same
//! task; beside that they are events of the log, at `debug`.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

tokio::task_local! {
    static NOTED: Arc<Mutex<Vec<Step>>>;
}

/// A step that has ended.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was done.
    pub name: String,
    /// How long it took.
    pub took: Duration,
    /// What came of it.
    pub outcome: String,
}

/// Does `work`, and gives the steps that it took beside its output.
pub async fn record<T>(work: impl Future<Output = T>) -> (T, Vec<Step>) {
    let noted = Arc::<Mutex<Vec<Step>>>::default();
    let output = NOTED.scope(Arc::clone(&noted), work).await;
    let steps = std::mem::take(&mut *noted.lock());
    (output, steps)
}

/// Notes a step that began at this moment and ends now.
pub fn note(name: impl Display, began: Instant, outcome: impl Display) {
    let took = began.elapsed();
    tracing::debug!(step = %name, ?took, %outcome, "step");
    // Nobody listens in most tasks.
    let _ = NOTED.try_with(|noted| {
        let step = Step { name: name.to_string(), took, outcome: outcome.to_string() };
        noted.lock().push(step);
    });
}

/// Does `work` as a step, whose outcome is the error or what `outcome` says of the result.
///
/// # Errors
/// That of the work.
pub async fn timed<T, E: Display, O: Display>(
    name: &str,
    work: impl Future<Output = Result<T, E>>,
    outcome: impl FnOnce(&T) -> O,
) -> Result<T, E> {
    let began = Instant::now();
    let result = work.await;
    match &result {
        Ok(output) => note(name, began, outcome(output)),
        Err(error) => note(name, began, error),
    }
    result
}
