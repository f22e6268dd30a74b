//! Puts values back into the arguments of a request.

use weir_policy::calls::*;

use super::labels;
use crate::{
    detect::TooMuch,
    document::{Place, Strings},
    mapping::Mapping,
    placeholder,
    settings::RedactSettings,
    text::{Change, rewrite_raw, unescape, within_message},
    vault::{self, Keys, Vault},
};

/// The request with the values of its caller in place of placeholders.
pub(super) fn restored(about: &Call, settings: &RedactSettings, params: &str, vault: &impl Vault) -> Decision {
    if !has_placeholders(params, settings) {
        return Decision::allow();
    }
    let keys = Keys::of(about.principal.as_ref());
    let (mut mapping, version) = match vault::load(vault, &keys) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Decision::allow(),
        // Placeholders that stay by accident could be stored upstream as if they were values.
        Err(_) => return Decision::deny("the values of the placeholders cannot be read now; try again later"),
    };
    match rewritten(params, settings, &mut mapping) {
        Ok((_, kinds)) if kinds.is_empty() => Decision::allow(),
        Ok((text, kinds)) => {
            vault::touch(vault, &keys, settings.ttl_seconds, &mapping, version);
            let labels = labels("restored", kinds.into_iter(), &settings.detectors);
            Decision { labels, ..Decision::replace(text) }
        }
        Err(TooMuch) => {
            Decision::deny("the arguments are too long with the values of their placeholders; send less at once")
        }
    }
}

/// Whether the arguments have a placeholder of a known kind.
fn has_placeholders(params: &str, settings: &RedactSettings) -> bool {
    Strings::of(params, Place::Request).any(|(string, _)| {
        let text = unescape(&params[string]);
        placeholder::all(&text).any(|one| settings.detectors.kind(one.name).is_some())
    })
}

/// The params with values, and the kind of each. What has no value stays.
fn rewritten(params: &str, settings: &RedactSettings, mapping: &mut Mapping) -> Result<(String, Vec<u8>), TooMuch> {
    let index = mapping.placeholders(|name| settings.detectors.kind(name));
    let (mut out, mut written, mut kinds) = (String::with_capacity(params.len()), 0, Vec::new());
    for (string, _) in Strings::of(params, Place::Request) {
        let raw = &params[string.clone()];
        let text = unescape(raw);
        let changes = placeholder::all(&text).filter_map(|one| {
            let kind = settings.detectors.kind(one.name)?;
            let entry = index.get(&(kind, one.number.to_string()))?;
            let with = mapping.value(*entry)?.to_owned();
            kinds.push(kind);
            Some(Change { start: one.place.start, end: one.place.end, with })
        });
        out.push_str(&params[written..string.start]);
        rewrite_raw(&mut out, raw, changes)?;
        written = string.end;
    }
    out.push_str(&params[written..]);
    within_message(&out)?;
    Ok((out, kinds))
}
