//! Metrics in the text form of Prometheus, for a mount with `-o metrics=`: answered over HTTP at an address, or written to a file for
//! node_exporter's textfile collector (a new file takes the old one's place, so nobody reads half of one).
//!
//! One thread, which sleeps in accept(2), or for a few seconds; it holds the file system, so it is stopped before that is closed.

use crate::error::{Error, Result};
use crate::fs::Filesystem;
use crate::stats::{Histogram, Stats};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How old a file may be.
const FILE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a client may take.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the metrics go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// HTTP.
    Address(SocketAddr),
    /// A file.
    File(PathBuf),
}

impl Target {
    /// An address with a port, or a path.
    pub fn parse(text: &str) -> Option<Target> {
        match text.parse() {
            Ok(address) => Some(Target::Address(address)),
            Err(_) => text.contains('/').then(|| Target::File(PathBuf::from(text))),
        }
    }
}

/// The thread that gives the metrics out.
#[derive(Debug)]
pub struct Exporter {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
    listening: Option<Arc<TcpListener>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Exporter {
    /// Begins to give out what `text` says.
    pub fn start(target: &Target, text: impl Fn() -> String + Send + 'static) -> Result<Exporter> {
        let shared = Arc::new(Shared::default());
        let in_thread = Arc::clone(&shared);
        let (mut address, mut listening) = (None, None);
        let body: Box<dyn FnOnce() + Send> = match target {
            Target::Address(wanted) => {
                let failed = |source| Error::io(format!("listening for metrics at {wanted}"), source);
                let listener = TcpListener::bind(wanted).map_err(failed)?;
                address = Some(listener.local_addr().map_err(failed)?);
                let listener = Arc::new(listener);
                listening = Some(Arc::clone(&listener));
                Box::new(move || answer(&in_thread, &listener, &text))
            }
            Target::File(path) => {
                let path = path.clone();
                write_file(&path, &text())?;
                Box::new(move || keep_file(&in_thread, &path, &text))
            }
        };
        let thread = std::thread::Builder::new().name("sumfs-metrics".to_owned()).spawn(body);
        let thread = thread.map_err(|source| Error::io("starting the metrics thread", source))?;
        Ok(Exporter { shared, address, listening, thread: Some(thread) })
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock());
        self.shared.woken.notify_all();
        if let Some(listener) = &self.listening {
            // Wakes accept(2). A connection would, too, but there may be no file descriptor left for it.
            rustix::net::shutdown(listener, rustix::net::Shutdown::Both).ok();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn answer(shared: &Shared, listener: &TcpListener, text: &dyn Fn() -> String) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        match stream {
            // Who asks is gone, or slow: that is its business.
            Ok(stream) => drop(reply(stream, text)),
            Err(error) => {
                tracing::warn!("metrics: {error}");
                let mut guard = shared.lock.lock();
                shared.woken.wait_for(&mut guard, CLIENT_TIMEOUT);
            }
        }
    }
}

/// Whatever is asked for.
fn reply(mut stream: TcpStream, text: &dyn Fn() -> String) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut request = [0; 4096];
    if stream.read(&mut request)? == 0 {
        return Ok(());
    }
    let body = text();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

fn keep_file(shared: &Shared, path: &Path, text: &dyn Fn() -> String) {
    let mut guard = shared.lock.lock();
    loop {
        let is_last = shared.stopping.load(Ordering::SeqCst);
        if !is_last {
            shared.woken.wait_for(&mut guard, FILE_INTERVAL);
        }
        if let Err(error) = write_file(path, &text()) {
            tracing::warn!("{error}");
        }
        if is_last {
            return;
        }
    }
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|source| Error::io(format!("writing metrics to {}", path.display()), source))
}

/// All metrics of a mounted store.
pub fn text(filesystem: &Filesystem) -> String {
    let mut text = String::new();
    let status = filesystem.status();
    counters(&mut text, &status["counters"]);
    for (name, gauges) in [("space", &status["space"]), ("metadata", &status["metadata"]), ("cache", &status["cache"])] {
        for (key, value) in numbers(gauges) {
            sample(&mut text, &format!("sumfs_{name}_{key}"), "gauge", "", value);
        }
    }
    sample(&mut text, "sumfs_read_only", "gauge", "", f64::from(u8::from(filesystem.read_only_reason().is_some())));
    devices(&mut text, &status["devices"]);
    latencies(&mut text, filesystem.stats());
    if let Ok(scrub) = filesystem.scrub_status(false) {
        scrub_state(&mut text, &scrub);
    }
    text
}

fn numbers(object: &Value) -> impl Iterator<Item = (&str, f64)> {
    object.as_object().into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_f64()?)))
}

fn sample(text: &mut String, name: &str, kind: &str, labels: &str, value: f64) {
    family(text, name, kind);
    line(text, name, labels, value);
}

fn family(text: &mut String, name: &str, kind: &str) {
    // Writing to a string does not fail.
    writeln!(text, "# TYPE {name} {kind}").ok();
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    writeln!(text, "{name}{labels} {value}").ok();
}

/// Operations and refusals by label, all others by name.
fn counters(text: &mut String, counters: &Value) {
    for (group, label) in [("operations", "operation"), ("refused", "reason")] {
        let name = format!("sumfs_{group}_total");
        family(text, &name, "counter");
        for (key, value) in numbers(&counters[group]) {
            line(text, &name, &format!("{{{label}=\"{key}\"}}"), value);
        }
    }
    let others = counters.as_object().into_iter().flatten();
    for (_, group) in others.filter(|(name, _)| !["operations", "refused", "latency"].contains(&name.as_str())) {
        for (key, value) in numbers(group) {
            sample(text, &format!("sumfs_{key}_total"), "counter", "", value);
        }
    }
}

fn devices(text: &mut String, devices: &Value) {
    let devices: Vec<&Value> = devices.as_array().into_iter().flatten().collect();
    for key in ["checksum_errors", "read_errors", "write_errors", "repaired_blocks"] {
        let name = format!("sumfs_device_{key}_total");
        family(text, &name, "counter");
        for device in &devices {
            line(text, &name, &format!("{{device=\"{}\"}}", device["id"]), device[key].as_f64().unwrap_or(0.0));
        }
    }
}

fn latencies(text: &mut String, stats: &Stats) {
    let histograms: [(&str, &Histogram); 4] = [
        ("fsync", &stats.fsync_latency),
        ("commit", &stats.commit_latency),
        ("slow_read", &stats.slow_read_latency),
        ("slow_write", &stats.slow_write_latency),
    ];
    for (what, histogram) in histograms {
        let name = format!("sumfs_{what}_seconds");
        family(text, &name, "histogram");
        let mut count = 0;
        for (bound_us, added) in histogram.buckets() {
            count += added;
            line(text, &format!("{name}_bucket"), &format!("{{le=\"{}\"}}", bound_us as f64 / 1e6), count as f64);
        }
        let count = histogram.count();
        line(text, &format!("{name}_bucket"), "{le=\"+Inf\"}", count as f64);
        line(text, &format!("{name}_sum"), "", histogram.sum_seconds());
        line(text, &format!("{name}_count"), "", count as f64);
    }
}

/// A scrub's age is the time since `sumfs_scrub_ended_seconds`.
fn scrub_state(text: &mut String, scrub: &Value) {
    let state = scrub["state"].as_str().unwrap_or("unknown");
    family(text, "sumfs_scrub_state", "gauge");
    line(text, "sumfs_scrub_state", &format!("{{state=\"{state}\"}}"), 1.0);
    for (key, name) in [
        ("began", "began_seconds"),
        ("ended", "ended_seconds"),
        ("bytes_done", "bytes_done"),
        ("bytes_total", "bytes_total"),
        ("bad_blocks", "bad_blocks"),
        ("repaired_blocks", "repaired_blocks"),
        ("damaged_values", "damaged_values"),
        ("healed_copies", "healed_copies"),
    ] {
        sample(text, &format!("sumfs_scrub_{name}"), "gauge", "", scrub[key].as_f64().unwrap_or(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Operation;

    fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn an_address_answers_until_it_is_dropped() {
        let target = Target::parse("127.0.0.1:0").unwrap();
        let exporter = Exporter::start(&target, || "a 1\n".to_owned()).unwrap();
        let address = exporter.address().unwrap();
        for _ in 0..2 {
            let reply = get(address);
            assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n\r\na 1\n"), "{reply}");
        }
        drop(exporter);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_file_is_there_at_once_and_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sumfs.prom");
        let count = std::sync::atomic::AtomicU64::new(0);
        let text = move || format!("a {}\n", count.fetch_add(1, Ordering::Relaxed));
        let exporter = Exporter::start(&Target::parse(path.to_str().unwrap()).unwrap(), text).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a 0\n");
        drop(exporter);
        assert_ne!(std::fs::read_to_string(&path).unwrap(), "a 0\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn targets_are_addresses_or_paths() {
        assert!(matches!(Target::parse("[::1]:9100"), Some(Target::Address(_))));
        assert_eq!(Target::parse("/var/lib/x.prom"), Some(Target::File("/var/lib/x.prom".into())));
        assert_eq!(Target::parse("9100"), None);
    }

    #[test]
    fn counters_devices_and_latencies_have_their_forms() {
        let stats = Stats::default();
        stats.count(Operation::Rename);
        stats.fsync_latency.record(Duration::from_micros(300));
        let mut all = String::new();
        counters(&mut all, &stats.to_json());
        latencies(&mut all, &stats);
        devices(&mut all, &serde_json::json!([{ "id": 3, "read_errors": 7 }]));
        for expected in [
            "sumfs_operations_total{operation=\"rename\"} 1\n",
            "sumfs_repaired_blocks_total 0\n",
            "sumfs_fsync_seconds_bucket{le=\"0.000256\"} 0\n",
            "sumfs_fsync_seconds_bucket{le=\"0.000512\"} 1\n",
            "sumfs_fsync_seconds_bucket{le=\"+Inf\"} 1\n",
            "sumfs_fsync_seconds_sum 0.0003\n",
            "sumfs_device_read_errors_total{device=\"3\"} 7\n",
            "# TYPE sumfs_fsync_seconds histogram\n",
        ] {
            assert!(all.contains(expected), "no {expected} in\n{all}");
        }
        let operations = all.lines().filter(|line| line.starts_with("sumfs_operations_total{")).count();
        assert_eq!(operations, Operation::ALL.len());
        // A family begins once.
        let mut families: Vec<&str> = all.lines().filter(|line| line.starts_with('#')).collect();
        let count = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), count);
    }
}
