//! The bench's server on standard input and output.

use super::answers::{Framing, Lists};
use crate::messages::Era;
use std::io::{BufRead, Write};

/// Serves until standard input ends.
pub(crate) fn serve(era: Era, tools: usize) -> anyhow::Result<()> {
    let lists = Lists::default();
    let list = match (era, tools) {
        (Era::Legacy, 20) => &lists.legacy_20,
        (Era::Legacy, _) => &lists.legacy_500,
        (Era::Modern, 20) => &lists.modern_20,
        (Era::Modern, _) => &lists.modern_500,
    };
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let (mut line, mut out) = (Vec::new(), Vec::new());
    while input.read_until(b'\n', &mut line)? > 0 {
        super::say(&line, Framing::Line, era, list, || 0, &mut out);
        output.write_all(&out)?;
        output.flush()?;
        line.clear();
        out.clear();
    }
    Ok(())
}
