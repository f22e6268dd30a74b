//! A server that a command names by its address, without a file: a configuration with this one upstream, so that what
//! holds in a file holds here.
//!
//! Its login is found again by the address alone, so `weir auth` and `weir connect` mean the same one.

use std::path::Path;

use sha2::{Digest, Sha256};
use url::Url;

use crate::config::{Config, SystemEnvironment};

use super::BadConfig;

/// How much of a host's name is part of the upstream's name.
const HOST: usize = 20;

/// Whether what stands in the place of a name is an address.
pub(super) fn is_address(text: &str) -> bool {
    text.contains("://")
}

/// The name of the upstream at an address: no other address has it.
pub(super) fn name(address: &str) -> String {
    let url = Url::parse(address).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default().trim_matches(['[', ']']);
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let host: String = host.chars().take(HOST).map(letter).collect();
    let whole = url.as_ref().map_or(address, Url::as_str);
    let hash = hex::encode(&Sha256::digest(whole)[..5]);
    // A name begins with a letter or digit, and a host may not.
    format!("{}-{hash}", host.trim_start_matches('-')).trim_start_matches('-').to_owned()
}

/// A configuration of the upstream at an address, which may have more to say of it; or what is wrong, for `command` to
/// tell. Values of headers are never in that.
pub(super) fn config(command: &str, address: &str, more: toml::Table) -> Result<Config, BadConfig> {
    let mut upstream = more;
    upstream.insert("url".into(), address.into());
    let named = toml::Table::from_iter([(name(address), toml::Value::Table(upstream))]);
    let root = toml::Table::from_iter([("upstreams".to_owned(), toml::Value::Table(named))]);
    Config::parse(&root.to_string(), Path::new(""), &SystemEnvironment).map_err(|problems| {
        // Lines and columns would be those of a file that nobody has written.
        let lines = problems.0.into_iter().map(|problem| match problem.hint {
            Some(hint) => format!("{command}: {}\n  hint: {hint}", problem.message),
            None => format!("{command}: {}", problem.message),
        });
        BadConfig(lines.collect::<Vec<_>>().join("\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UpstreamName;

    #[test]
    fn each_address_has_a_name_of_its_own() {
        let addresses = [
            "https://mcp.example.com/mcp",
            "https://mcp.example.com/mcp/",
            "https://mcp.example.com/mcp?tenant=1",
            "http://[::1]:8080/mcp",
            "http://127.0.0.1:8080/mcp",
            "https://a-very-long-name-of-a-host.example.com/mcp",
            "https://-x.example/",
        ];
        let names: std::collections::HashSet<String> = addresses.iter().map(|address| name(address)).collect();
        assert_eq!(names.len(), addresses.len(), "{names:?}");
        for name in &names {
            assert!(name.parse::<UpstreamName>().is_ok(), "{name}");
        }
        assert_eq!(name("https://MCP.example.com:443/mcp"), name("https://mcp.example.com/mcp"));
        assert!(name(addresses[0]).starts_with("mcp-example-com-"), "{names:?}");
    }
}
