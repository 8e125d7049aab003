//! A process that crosses a threshold and comes back, as often as it is asked to.
//!
//! One byte on standard input, or in a named pipe, is one step: the first fills, the second gives back, and so on; one byte
//! on standard output says that the step is done. Nothing is killed by it and it ends when its input does. In a pod, which has
//! no input, steps are taken by the clock, and it stays when they are over.

use crate::{hog, map::Mapping};
use anyhow::{Context as _, Result};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The cgroup to join first: its directory.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// How much to fill at each step.
    #[arg(long)]
    mib: usize,
    /// The named pipe that has the steps, in place of standard input.
    #[arg(long, conflicts_with = "times")]
    steps: Option<PathBuf>,
    /// Fill so often by the clock, and then stay with nothing.
    #[arg(long)]
    times: Option<u32>,
    /// Seconds from each step by the clock to the next.
    #[arg(long, default_value_t = 10)]
    every: u64,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    if let Some(cgroup) = &arguments.cgroup {
        hog::join(cgroup)?;
    }
    let bytes = arguments.mib << 20;
    let memory = Mapping::anonymous(bytes, MapFlags::empty()).context("cannot map")?;
    memory.huge(false)?;
    if let Some(times) = arguments.times {
        let pause = || thread::sleep(Duration::from_secs(arguments.every));
        for _ in 0..times {
            memory.touch(0, bytes, page_size());
            pause();
            memory.give_back()?;
            pause();
        }
        loop {
            thread::park();
        }
    }
    let mut step = [0_u8];
    let mut input: Box<dyn Read> = match &arguments.steps {
        Some(pipe) => Box::new(File::open(pipe).with_context(|| format!("cannot open {}", pipe.display()))?),
        None => Box::new(std::io::stdin()),
    };
    let mut output = std::io::stdout();
    let mut full = false;
    while input.read(&mut step)? == 1 {
        if full {
            memory.give_back()?;
        } else {
            memory.touch(0, bytes, page_size());
        }
        full = !full;
        output.write_all(&step)?;
        output.flush()?;
    }
    Ok(())
}
