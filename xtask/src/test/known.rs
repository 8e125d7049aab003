//! The page of known deviations, as far as tests go by it.

use anyhow::Context;

use crate::run;

/// Where the page lies, from the checkout's top.
pub(super) const PAGE: &str = "agent/docs/known-deviations.md";
/// The section that lists flaky tests, an entry each: `- \`test-name\`: what was seen, and where it stands.`
const SECTION: &str = "## Flaky tests";

/// The tests that the page lists as flaky.
pub(super) fn flaky_tests() -> anyhow::Result<Vec<String>> {
    let path = run::root().join(PAGE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    listed(&text).with_context(|| format!("{} has no section {SECTION:?}", path.display()))
}

fn listed(text: &str) -> Option<Vec<String>> {
    let (_, after) = text.split_once(&format!("{SECTION}\n"))?;
    let section = after.split("\n## ").next().unwrap_or(after);
    let named = section.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    Some(named.map(|(name, _)| name.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn entries_of_the_section_alone_are_listed_and_each_says_why() {
        let page = "# Deviations\n\n- `zero`: other.\n\n## Flaky tests\n\n- `one`: why, over\n  two lines.\n- `two`: why.\n- `three`\n\n\
                    ## Else\n\n- `four`: other.\n";
        assert_eq!(listed(page).expect("a section"), ["one", "two"]);
        assert_eq!(listed("# Deviations\n"), None);
    }

    #[test]
    fn the_page_is_there() {
        super::flaky_tests().expect("a page with the section");
    }
}
