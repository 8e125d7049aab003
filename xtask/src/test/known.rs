//! The page of flaky tests.

use anyhow::Context;

use crate::run;

/// Where it lies, from the checkout's top. An entry each: `- \`test-name\`: what was seen, and where it stands.`
pub(super) const PAGE: &str = "agent/docs/flaky-tests.md";

/// The tests that it lists.
pub(super) fn flaky_tests() -> anyhow::Result<Vec<String>> {
    let path = run::root().join(PAGE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(listed(&text))
}

fn listed(text: &str) -> Vec<String> {
    let named = text.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    named.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn each_entry_that_says_why_is_listed() {
        let page = "# Flaky tests\n\n- `one`: why, over\n  two lines.\n- `two`: why.\n- `three`\n";
        assert_eq!(listed(page), ["one", "two"]);
    }

    #[test]
    fn the_page_is_there() {
        assert!(!super::flaky_tests().expect("the page").is_empty());
    }
}
