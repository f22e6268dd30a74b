//! Paths into a JSON document, such as `items.*.title`. `*` stands for every key and every element.

/// The most paths of one list: each is a bit of [`Open`].
pub(crate) const PATHS: usize = 32;
/// The longest path, in bytes.
const PATH: usize = 256;

/// Paths, by their steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths(Vec<Vec<String>>);

/// Which of the paths lead to a value, or below it.
pub(crate) type Open = u32;

impl Paths {
    /// The error is what is wrong with a path.
    pub(crate) fn read<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let path = |text: &str| {
            let steps: Vec<_> = text.split('.').map(str::to_owned).collect();
            if text.len() > PATH || steps.iter().any(String::is_empty) {
                let shown: String = text.chars().take(40).collect();
                return Err(format!("has `{shown}`; a path is keys with dots between them, such as `items.*.title`"));
            }
            Ok(steps)
        };
        let paths = texts.map(path).collect::<Result<Vec<_>, _>>()?;
        if paths.len() > PATHS { Err(format!("has more than {PATHS} paths")) } else { Ok(Self(paths)) }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them lead to the document.
    pub(crate) fn open(&self) -> Open {
        self.0.iter().fold(0, |open, _| open << 1 | 1)
    }

    /// One step down, to a key or an element: the paths that lead below it, and whether one ends there.
    pub(crate) fn step(&self, open: Open, depth: usize, key: Option<&str>) -> (Open, bool) {
        let (mut left, mut below, mut ends) = (open, 0, false);
        while let Some(path) = self.0.get(left.trailing_zeros() as usize) {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            let fits = path.get(depth).is_some_and(|step| step == "*" || Some(step.as_str()) == key);
            if fits && path.len() == depth + 1 {
                ends = true;
            } else if fits {
                below |= bit;
            }
        }
        (below, ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed_step_by_step() {
        let paths = Paths::read(["items.*.title", "total", "*.id"].into_iter()).expect("these are paths");
        let open = paths.open();
        assert_eq!(open, 0b111);
        assert_eq!(paths.step(open, 0, Some("items")), (0b101, false));
        assert_eq!(paths.step(open, 0, Some("total")), (0b100, true));
        assert_eq!(paths.step(open, 0, None), (0b100, false));
        assert_eq!(paths.step(0b101, 1, None), (0b001, false));
        assert_eq!(paths.step(0b101, 1, Some("id")), (0b001, true));
        assert_eq!(paths.step(0b001, 2, Some("title")), (0, true));
        assert_eq!(paths.step(0b001, 2, Some("body")), (0, false));
    }

    #[test]
    fn as_many_paths_as_bits_are_read() {
        let of = |count: usize| Paths::read(std::iter::repeat_n("a", count));
        assert_eq!(of(PATHS).map(|paths| paths.open()), Ok(u32::MAX));
        assert!(of(PATHS + 1).is_err());
        assert_eq!(Paths::default().step(0, 0, Some("a")), (0, false));
        for wrong in ["", ".a", "a.", "a..b"] {
            assert!(Paths::read([wrong].into_iter()).is_err(), "{wrong}");
        }
    }
}
