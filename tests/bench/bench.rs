//! What the benchmarks share: the machine they ran on, rounds and medians, tables, a store to measure in, fio. Nothing here asserts a
//! time. `BENCH_DIR` chooses where the stores go (a tmpfs if there is one, so that the device is not what is measured),
//! `BENCH_ROUNDS` how often everything is measured (3); the variants of a round run one after the other, so that a busy moment of
//! the machine meets all of them.

#![allow(dead_code, missing_docs)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints what was run and where.
pub fn headline(title: &str, command: &str) {
    println!("\n## {title}\n");
    println!("command: {command}");
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1)).unwrap_or("unknown").to_owned();
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let date = shell_line("date", &["-u", "+%Y-%m-%d %H:%M"]);
    let load = read("/proc/loadavg");
    let place = shell_line("df", &["--output=fstype", &directory().to_string_lossy()]);
    println!(
        "{date} UTC, Linux {}, {count} x {}, stores on {place}, load before {}, medians of {} rounds\n",
        read("/proc/sys/kernel/osrelease").trim(),
        cpu.trim(),
        load.split(' ').next().unwrap_or_default(),
        rounds()
    );
}

fn shell_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().trim().to_owned()
}

/// Where stores go.
pub fn directory() -> PathBuf {
    match std::env::var_os("BENCH_DIR") {
        Some(path) => path.into(),
        None if Path::new("/dev/shm").is_dir() => "/dev/shm".into(),
        None => std::env::temp_dir(),
    }
}

pub fn rounds() -> usize {
    std::env::var("BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Median; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Several figures of one variant, each the median of its rounds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Vec<f64>>);

impl Samples {
    /// Adds the figures of one round.
    pub fn add(&mut self, figures: &[f64]) {
        self.0.resize(figures.len().max(self.0.len()), Vec::new());
        self.0.iter_mut().zip(figures).for_each(|(column, figure)| column.push(*figure));
    }

    /// The median of one figure.
    pub fn figure(&self, at: usize) -> f64 {
        self.0.get(at).cloned().map_or(0.0, median)
    }
}

/// Prints a table in Markdown; the first column is left-aligned.
pub fn table(columns: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or_default().max(columns[at].len()))
        .collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, width))| if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
            .collect();
        println!("| {} |", cells.join(" | "));
    };
    line(&columns.iter().map(|column| (*column).to_owned()).collect::<Vec<_>>());
    let rule: Vec<String> = widths.iter().enumerate().map(|(at, width)| rule(at, *width)).collect();
    println!("|{}|", rule.join("|"));
    rows.iter().for_each(|row| line(row));
}

fn rule(at: usize, width: usize) -> String {
    if at == 0 { "-".repeat(width + 2) } else { format!("{}:", "-".repeat(width + 1)) }
}

/// Runs fio with these arguments; None when it is not installed. Panics with what it says when it fails.
pub fn fio(arguments: &[String]) -> Option<Value> {
    let output = match Command::new("fio").args(["--name=job", "--output-format=json"]).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let json = text.find('{').map(|at| &text[at..]).unwrap_or_default();
    assert!(output.status.success(), "fio {arguments:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_str(json).unwrap_or_else(|error| panic!("fio {arguments:?}: {error} in {text}")))
}

/// Says that fio is missing and ends the program: a benchmark that did not run fails `make bench`.
pub fn no_fio() -> ! {
    eprintln!("fio is missing: as root, apt-get install fio");
    std::process::exit(1);
}

/// One figure of all jobs together: of `/jobs/N/DIRECTION/...`.
pub fn fio_figures(result: &Value, direction: &str, pointer: &str) -> Vec<f64> {
    let jobs = result["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    jobs.iter().filter_map(|job| job[direction].pointer(pointer)?.as_f64()).collect()
}

/// `a` is so many times `b`.
pub fn times(a: f64, b: f64) -> String {
    if b > 0.0 { format!("{:.2}", a / b) } else { "-".to_owned() }
}
