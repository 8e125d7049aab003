//! `plimsoll config`: what a configuration comes to and where each value came from, and the same in another form.
//! Changes nothing.

use std::fmt::Write as _;

use plimsoll_config::kubelet::Role;
use plimsoll_config::{ConfigError, Form, Problem, Report, Row, convert, rows};
use plimsoll_node::discover::Protected;
use serde_json::{Value, json};

use crate::core;
use crate::options::Options;

/// What to do with the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const CODES: &str = "Exit codes: 0 done; 2 wrong arguments or configuration, each error is a line.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print every value, defaults included, with where it came from.
    #[command(after_help = CODES)]
    Show(Show),
    /// Print the same configuration in another form. What that form cannot say is named on standard error.
    #[command(after_help = CODES)]
    Convert(Convert),
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    options: Options,
    /// For people, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct Convert {
    #[command(flatten)]
    options: Options,
    /// The form: Plimsoll's own file, a kubelet's file (KubeletConfiguration), or a kubelet's flags, one a line.
    #[arg(long)]
    to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Plimsoll,
    Kubelet,
    Flags,
}

/// Does it, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.command {
        Command::Show(show) => {
            let report = in_order(&show.options)?;
            match show.output {
                Output::Text => print!("{}", text(&rows(&report.configuration))),
                Output::Json => println!("{}", object(&report)),
            }
        }
        Command::Convert(Convert { options, to }) => {
            let report = in_order(options)?;
            let form = match to {
                To::Plimsoll => Form::Plimsoll,
                To::Kubelet => Form::Kubelet,
                To::Flags => Form::Flags,
            };
            let converted = convert(&report.configuration, form);
            print!("{}", converted.text);
            for lost in converted.lost {
                eprintln!("plimsoll: left out: {}: {}", lost.key, lost.why);
            }
        }
    }
    Ok(0)
}

fn examine(options: &Options) -> Report {
    options.examine(core::own_cgroup(&Protected::read()))
}

/// A configuration without errors; what is odd about it is told beside it.
fn in_order(options: &Options) -> Result<Report, ConfigError> {
    let report = examine(options);
    for warning in &report.warnings {
        eprintln!("plimsoll: warning: {warning}");
    }
    if report.errors.is_empty() { Ok(report) } else { Err(ConfigError(report.errors)) }
}

fn text(rows: &[Row]) -> String {
    let cells: Vec<[String; 3]> = rows
        .iter()
        .map(|row| {
            let value = match &row.value {
                Value::Null => "-".to_owned(),
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let role = match row.role {
                Role::Used => "",
                Role::Shown => " (shown only)",
            };
            [row.key.clone(), value, format!("{}{role}", row.origin)]
        })
        .collect();
    let width = |column: usize, most: usize| {
        cells.iter().map(|row| row[column].chars().count()).filter(|width| *width <= most).max().unwrap_or(0)
    };
    let (keys, values) = (width(0, 60), width(1, 40));
    let mut text = String::new();
    for [key, value, origin] in &cells {
        // Writing into a String does not fail.
        let _ = writeln!(text, "{key:keys$}  {value:values$}  {origin}");
    }
    text
}

fn object(report: &Report) -> Value {
    let rows = rows(&report.configuration).into_iter().map(|row| {
        let (file, line) = row.origin.place();
        json!({
            "key": row.key,
            "value": row.value,
            "origin": row.origin.to_string(),
            "file": file,
            "line": line,
            "used": row.role == Role::Used,
        })
    });
    json!({ "rows": rows.collect::<Vec<_>>(), "warnings": problems(&report.warnings) })
}

fn problems(problems: &[Problem]) -> Vec<Value> {
    problems
        .iter()
        .map(|Problem { file, line, key, value, expected }| {
            json!({ "file": file, "line": line, "key": key, "value": value, "expected": expected })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::{Overrides, Text, Texts, examine_texts};

    fn report() -> Report {
        let text = "kubeletArguments:\n  eviction-hard: ['memory.available<500Mi']\n  system-reserved: ['1.5Gi']\n";
        let node_config = Some(Text { file: "node-config.yaml".to_owned(), text: text.to_owned() });
        examine_texts(&Texts { node_config, ..Texts::default() }, &Overrides::default())
    }

    #[test]
    fn values_are_printed_with_their_places() {
        let text = text(&rows(&report().configuration));
        for line in [
            "evictionHard.memory.available     500Mi               kubeletArguments.eviction-hard in node-config.yaml:2",
            "evictionSoft                      -                   default",
            "systemReserved.memory             1.5Gi               kubeletArguments.system-reserved in \
             node-config.yaml:3",
            "failSwapOn                        true                default (shown only)",
            "machine.brake.mode                freeze              default",
        ] {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(text.lines().any(|printed| words(printed) == words(line)), "{line}\n{text}");
        }
    }

    #[test]
    fn programs_get_one_object() {
        let object = object(&report());
        let row = object["rows"].as_array().and_then(|rows| rows.first()).expect("a row");
        assert_eq!(
            *row,
            json!({
                "key": "evictionHard.memory.available",
                "value": "500Mi",
                "origin": "kubeletArguments.eviction-hard in node-config.yaml:2",
                "file": "node-config.yaml",
                "line": 2,
                "used": true,
            })
        );
        assert_eq!(object["warnings"][0]["key"], "kubeletArguments.system-reserved");
    }
}
