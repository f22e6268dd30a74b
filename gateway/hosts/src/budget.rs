//! How long the name of a tool may be for each host.

use crate::Host;

impl Host {
    /// The longest name of a tool that the host or its model's API takes, in characters. The host's prefix is part of it.
    ///
    /// None stands for programs that show names to no model. Sources: the APIs of Anthropic and OpenAI take 64, and so
    /// do Codex, VS Code and Zed; Gemini CLI cuts names over 63; Cursor takes 60. MCP itself advises 128.
    pub fn name_budget(self) -> Option<usize> {
        match self {
            Self::Cursor => Some(60),
            Self::GeminiCli => Some(63),
            Self::ClaudeCode
            | Self::ClaudeDesktop
            | Self::VsCode
            | Self::Codex
            | Self::Goose
            | Self::Zed
            | Self::OpenCode => Some(64),
            Self::Windsurf => Some(128),
            Self::Inspector | Self::FastMcp | Self::McpHub | Self::McpToml => None,
        }
    }

    /// What the host puts before the names of tools, where it calls Weir `entry`.
    pub fn tool_prefix(self, entry: &str) -> String {
        match self {
            Self::ClaudeCode | Self::Codex => format!("mcp__{entry}__"),
            Self::GeminiCli | Self::VsCode => format!("mcp_{entry}_"),
            Self::Goose => format!("{entry}__"),
            Self::OpenCode => format!("{entry}_"),
            // It counts both names together.
            Self::Cursor => format!("{entry}:"),
            _ => String::new(),
        }
    }

    /// The public names that are longer than this, where the host calls Weir `entry`.
    pub fn over_budget<'n>(self, budget: usize, entry: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
        let prefix = self.tool_prefix(entry).chars().count();
        names.into_iter().filter(|name| prefix + name.chars().count() > budget).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_the_host_is_part_of_the_budget() {
        let (fits, exceeds) = ("x".repeat(64 - 11), "x".repeat(64 - 10));
        let names = [fits.as_str(), exceeds.as_str()];
        assert_eq!(Host::ClaudeCode.over_budget(64, "weir", names), [exceeds.as_str()]);
        assert_eq!(Host::ClaudeCode.over_budget(64, "w", names), [""; 0]);
        assert_eq!(Host::ClaudeCode.over_budget(128, "weir", names), [""; 0]);
        assert_eq!(Host::Inspector.name_budget(), None);
        assert!(Host::ALL.into_iter().filter_map(Host::name_budget).all(|budget| (60..=128).contains(&budget)));
    }
}
