//! The sources of a kubelet's command line: `/proc/PID/cmdline`, a systemd unit with its drop-ins and environment
//! files, `kubeadm-flags.env`, or the plain words as `ps` prints them.

use super::arguments::Word;
use super::read::is_misplaced;
use crate::model::Text;
use crate::tree::{Problems, read};
use std::collections::BTreeMap;

/// The kind of a text with a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Words, each ended by a NUL.
    Cmdline,
    /// A unit, or several as `systemctl cat` prints them.
    Unit,
    /// Variables whose values are flags.
    Environment,
    /// Words between blanks.
    Plain,
    /// Comments at most.
    Empty,
}

/// The words, and whether they are a whole command line. An environment file alone is not, nor is a file that has no
/// words: the rest is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) words: Vec<Word>,
    pub(crate) whole: bool,
    /// The file that has a part at most, if there is no more.
    pub(crate) part: Option<String>,
}

fn kind(text: &str) -> Kind {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    if text.contains('\0') {
        Kind::Cmdline
    } else if lines.clone().any(|line| line == "[Service]" || line.starts_with("ExecStart")) {
        Kind::Unit
    } else {
        match lines.next() {
            None => Kind::Empty,
            Some(line) if assignment(line).is_some() => Kind::Environment,
            Some(_) => Kind::Plain,
        }
    }
}

/// The command line in these files, in their order; units are read as one. `read` returns the text of an environment
/// file that a unit names.
pub(crate) fn command_line(
    texts: &[Text],
    read: &dyn Fn(&str) -> std::io::Result<String>,
    problems: &mut Problems,
) -> CommandLine {
    let mut unit = Unit::default();
    let mut line = CommandLine::default();
    let mut environments = Vec::new();
    for Text { file, text } in texts {
        problems.turn_to(file);
        match kind(text) {
            Kind::Cmdline => {
                line.whole = true;
                let words = text.strip_suffix('\0').unwrap_or(text).split('\0');
                line.words.extend(words.map(|word| Word { text: word.to_owned(), file: file.clone(), line: None }));
            }
            Kind::Plain if is_other_file(text, problems) => {}
            Kind::Plain => {
                line.whole = true;
                let lines = (1..).zip(text.lines().map(|line| line.trim_end_matches('\\')));
                line.words.extend(lines.flat_map(|(number, text)| words(file, Some(number), text, problems)));
            }
            Kind::Empty => line.part = Some(file.clone()),
            Kind::Unit => unit.add(file, text, read, problems),
            Kind::Environment => {
                line.part = Some(file.clone());
                environments.extend(variables(file, text, problems).into_iter().map(|(_, value)| value));
            }
        }
    }
    let has_unit = unit.start.is_some();
    let mut found = unit.words(problems);
    found.append(&mut line.words);
    for Word { text, file, line } in environments {
        found.extend(words(&file, line, &text, problems));
    }
    let whole = line.whole || has_unit;
    CommandLine { words: found, whole, part: line.part.filter(|_| !whole) }
}

/// Whether a text is a file that belongs under another option, which is reported.
fn is_other_file(text: &str, problems: &mut Problems) -> bool {
    // A command line is not a mapping, and need not be YAML.
    read(text, &mut Problems::new("")).is_some_and(|document| is_misplaced(&document.value, "", problems))
}

/// A unit, or a unit with its drop-ins behind it.
#[derive(Debug, Default)]
struct Unit {
    /// `ExecStart=`, the last that counts.
    start: Option<Word>,
    environment: BTreeMap<String, Word>,
    /// Environment files override `Environment=`, in whatever order both are.
    from_files: BTreeMap<String, Word>,
}

impl Unit {
    fn add(&mut self, file: &str, text: &str, read: &dyn Fn(&str) -> std::io::Result<String>, problems: &mut Problems) {
        let mut in_service = true;
        for (number, line) in numbered_and_joined(text) {
            let line = line.trim();
            if line.starts_with('[') {
                in_service = line == "[Service]";
            }
            let Some((name, value)) = line.split_once('=').filter(|_| in_service) else { continue };
            let value = value.trim();
            let word = |text: String| Word { text, file: file.to_owned(), line: Some(number) };
            match name.trim() {
                "ExecStart" if value.is_empty() => self.start = None,
                "ExecStart" => self.start = Some(word(value.to_owned())),
                "Environment" if value.is_empty() => self.environment.clear(),
                "Environment" => {
                    for setting in words(file, Some(number), &without_specifiers(value), problems) {
                        if let Some((name, value)) = assignment(&setting.text) {
                            self.environment.insert(name.to_owned(), word(value.to_owned()));
                        }
                    }
                }
                "EnvironmentFile" if value.is_empty() => self.from_files.clear(),
                "EnvironmentFile" => {
                    let path = value.strip_prefix('-').unwrap_or(value);
                    match read(path) {
                        Ok(text) => self.from_files.extend(variables(path, &text, problems)),
                        Err(_) if value.starts_with('-') => {}
                        Err(error) => problems.warn(
                            Some(number),
                            "EnvironmentFile",
                            Some(path),
                            &format!("cannot be read ({error}); its flags are not known"),
                        ),
                    }
                }
                _ => {}
            }
        }
    }

    /// The words of `ExecStart=`, with variables filled in.
    fn words(&self, problems: &mut Problems) -> Vec<Word> {
        let Some(start) = &self.start else { return Vec::new() };
        let text = start.text.trim_start_matches(['@', '-', ':', '+', '!', '|']);
        let mut found = Vec::new();
        for word in words(&start.file, start.line, &without_specifiers(text), problems) {
            let name = word.text.strip_prefix('$').filter(|name| !name.starts_with(['{', '$']));
            match name {
                // A variable that is a whole word is split into words.
                Some(name) => {
                    if let Some(value) = self.variable(name) {
                        found.extend(words(&value.file, value.line, &value.text, problems));
                    }
                }
                None => found.push(Word { text: self.filled_in(&word.text), ..word }),
            }
        }
        found
    }

    fn variable(&self, name: &str) -> Option<&Word> {
        self.from_files.get(name).or_else(|| self.environment.get(name))
    }

    /// `${NAME}` inside of a word stays a part of it; `$$` is a dollar.
    fn filled_in(&self, word: &str) -> String {
        let mut text = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            rest = after;
            if let Some(after) = rest.strip_prefix('$') {
                text.push('$');
                rest = after;
            } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                text.push_str(self.variable(name).map_or("", |value| &value.text));
                rest = after;
            } else {
                text.push('$');
            }
        }
        text.push_str(rest);
        text
    }
}

/// In units a percent sign begins a specifier, and two are one. The values of specifiers are not known here.
fn without_specifiers(text: &str) -> String {
    text.replace("%%", "%")
}

/// The variables of an environment file.
fn variables(file: &str, text: &str, problems: &mut Problems) -> Vec<(String, Word)> {
    let mut found = Vec::new();
    for (number, line) in numbered_and_joined(text) {
        let Some((name, value)) = assignment(line.trim()) else { continue };
        let value = words(file, Some(number), value, problems);
        let value = value.into_iter().map(|word| word.text).collect::<Vec<_>>().join(" ");
        found.push((name.to_owned(), Word { text: value, file: file.to_owned(), line: Some(number) }));
    }
    found
}

/// Lines with the number of their first, joined where a backslash ends them, without comments.
fn numbered_and_joined(text: &str) -> Vec<(u64, String)> {
    let mut joined: Vec<(u64, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match joined.last_mut() {
            Some((_, before)) if goes_on => {
                before.push(' ');
                before.push_str(part);
            }
            _ => joined.push((number, part.to_owned())),
        }
        goes_on = more;
    }
    joined
}

/// `NAME=value`, as environment files and `Environment=` have it; the word `export` before it is ignored.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((name, value))
}

/// Words between blanks. Quotes around blanks make one word and are removed; a backslash removes the meaning of the
/// character behind it. A quotation without an end is an error. Unlike for a shell, `#` within a line begins no comment
/// (systemd.syntax(7)); the crate shlex splits as a shell does, `#` included, and does not say where a quotation begins
/// that has no end.
fn words(file: &str, line: Option<u64>, text: &str, problems: &mut Problems) -> Vec<Word> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<(usize, char)> = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, quote) {
            ('\\', None | Some((_, '"'))) => word.get_or_insert_default().extend(chars.next().map(|(_, c)| c)),
            (c, Some((_, open))) if c == open => quote = None,
            ('"' | '\'', None) => {
                word.get_or_insert_default();
                quote = Some((at, c));
            }
            (c, None) if c.is_whitespace() => found.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if let Some((at, quote)) = quote {
        problems.turn_to(file);
        let why = format!("the quotation that begins here has no end; expected a closing {quote}");
        problems.add(line, "command line", Some(text[at..].trim_end()), &why);
    }
    found.extend(word);
    found.into_iter().map(|text| Word { text, file: file.to_owned(), line }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(texts: &[&str]) -> (Vec<String>, Vec<Option<u64>>) {
        let texts: Vec<Text> =
            texts.iter().map(|text| Text { file: "f".to_owned(), text: (*text).to_owned() }).collect();
        let read = |path: &str| match path {
            "/var/lib/kubelet/kubeadm-flags.env" => Ok("KUBELET_KUBEADM_ARGS=\"--a=1 --b\"\n".to_owned()),
            _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        };
        let mut problems = Problems::new("f");
        let line = command_line(&texts, &read, &mut problems);
        assert_eq!(problems.found, []);
        line.words.into_iter().map(|word| (word.text, word.line)).unzip()
    }

    #[test]
    fn each_kind_of_text_gives_its_words() {
        for (texts, words, lines) in [
            (&["/usr/bin/kubelet\0--a=1 2\0--b\0"][..], &["/usr/bin/kubelet", "--a=1 2", "--b"][..], &[None; 3][..]),
            (&["kubelet --a='1 2' \\\n  --b\n"], &["kubelet", "--a=1 2", "--b"], &[Some(1), Some(1), Some(2)]),
            (&["# by kubeadm\nKUBELET_KUBEADM_ARGS=\"--a=1 --b=2\"\n"], &["--a=1", "--b=2"], &[Some(2); 2]),
            (
                &[
                    "[Unit]\nExecStart=no\n[Service]\nEnvironment=\"A=--x=1 --y\" B=2\nExecStart=/k --p=10%% $A --q=${B}$$ $NONE\n",
                ],
                &["/k", "--p=10%", "--x=1", "--y", "--q=2$"],
                &[Some(5), Some(5), Some(4), Some(4), Some(5)],
            ),
            (
                &[
                    "[Service]\nExecStart=/usr/bin/kubelet\n",
                    "[Service]\nEnvironmentFile=-/etc/default/kubelet\nEnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n\
                     ExecStart=\nExecStart=/usr/bin/kubelet \\\n  # a comment in between\n  $KUBELET_KUBEADM_ARGS --c\n",
                ],
                &["/usr/bin/kubelet", "--a=1", "--b", "--c"],
                &[Some(5), Some(1), Some(1), Some(5)],
            ),
            (&["[Service]\nExecStart=\n"], &[], &[]),
            (&[""], &[], &[]),
        ] {
            let (found_words, found_lines) = found(texts);
            assert_eq!((found_words, found_lines.as_slice()), (words.iter().map(ToString::to_string).collect(), lines));
        }
    }
}
