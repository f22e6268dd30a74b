//! Pauses between tries.

use std::time::Duration;

/// `pause` or up to a quarter more or less, so that those who lost one server do not come back to it all at once.
pub fn jittered(pause: Duration) -> Duration {
    let mut random = [0_u8];
    // Without randomness all of them come at once, which is no worse than it would be anyway.
    let _ = getrandom::fill(&mut random);
    pause * (192 + u32::from(random[0]) / 2) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jittered_pause_is_near_to_what_was_asked() {
        let pause = Duration::from_secs(8);
        for _ in 0..1000 {
            let jittered = jittered(pause);
            assert!((6..=10).contains(&jittered.as_secs()), "{jittered:?}");
        }
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}
