//! Runs targets: a child process for each, which writes the number of its case to a file before it begins it; the parent shows progress,
//! and turns a death or a standstill of the child into a finding. Panics are findings too, each place in the code told once.
//!
//! A child has [`HEADROOM_BYTES`] of address space beyond what its first cases needed: the allocation that passes it aborts. What panics
//! inside a library leave behind adds up, so a child that has grown by a part of that ends before a case, and another one goes on.

use crate::simulated_disk::Random;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// More than this, in one allocation or in many, is without bound.
const HEADROOM_BYTES: u64 = 256 << 20;
/// Growth after which a child ends and another one goes on.
const GROWTH_BYTES: u64 = 48 << 20;
/// The exit code that says so.
const GROWN: u8 = 75;
/// Cases before the address space is limited: threads and caches come to be.
const WARM_UP_CASES: u64 = 3;
/// Processor time after which a case hangs.
const HANG_CPU_SECONDS: u64 = 10;
/// Time after which a case hangs although it uses no processor: a deadlock. Generous, for machines under load.
const HANG_SECONDS: u64 = 120;
/// Different findings after which a target is given up.
const FINDINGS_MAX: usize = 40;
const DEFAULT_SEED: u64 = 1;

/// What is mutated and looked at.
pub trait Target {
    /// One case. Says whether the input was taken (so that one sees that cases get behind the checksums); an error is a finding. What
    /// was done goes to `steps`.
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String>;
}

/// A target to run.
pub struct Plan {
    pub name: &'static str,
    /// 0: runs only when asked for.
    pub short_cases: u64,
    pub make: fn() -> Box<dyn Target>,
}

/// How long a target runs.
#[derive(Clone, Copy)]
enum Until {
    Cases(u64),
    Seconds(u64),
}

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The program: see `main.rs`.
pub fn main(plans: &[Plan]) -> ExitCode {
    let seed = number_from("SEED").unwrap_or(DEFAULT_SEED);
    if let Ok(name) = std::env::var("FUZZ_CHILD") {
        let plan = plans.iter().find(|plan| plan.name == name).expect("a target of that name");
        return child(plan, seed);
    }
    // The filter of `cargo test FILTER`; options of libtest mean nothing here.
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let target = std::env::var("FUZZ_TARGET").ok().filter(|name| !name.is_empty());
    if let Some(name) = &target {
        assert!(plans.iter().any(|plan| plan.name == name), "no target {name}");
    }
    let is_wanted = |plan: &&Plan| match &target {
        Some(name) => plan.name == name,
        None if plan.short_cases == 0 => false,
        None => filters.is_empty() || filters.iter().any(|filter| format!("fuzz_{}", plan.name).contains(filter)),
    };
    let wanted: Vec<&Plan> = plans.iter().filter(is_wanted).collect();
    if let (Some(case), [plan]) = (number_from("FUZZ_CASE"), &wanted[..]) {
        return repeat(plan, seed, case);
    }
    let mut findings = 0;
    for plan in wanted {
        let until = match number_from("FUZZ_SECONDS") {
            Some(seconds) => Until::Seconds(seconds),
            None => Until::Cases(plan.short_cases),
        };
        println!("fuzz_{}: SEED={seed}", plan.name);
        findings += Parent::new(plan, seed, until).run();
    }
    println!("fuzz: {findings} findings");
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn random_of(seed: u64, case: u64) -> Random {
    Random::new(Random::new(seed).next() ^ Random::new(case.wrapping_mul(0x1_0000_0001)).next())
}

/// How a child ended.
enum End {
    Done,
    Grown,
    Died(String),
}

/// Watches the children of one target.
struct Parent<'a> {
    plan: &'a Plan,
    seed: u64,
    until: Until,
    began: Instant,
    state: tempfile::NamedTempFile,
    findings: u64,
    first: u64,
}

impl<'a> Parent<'a> {
    fn new(plan: &'a Plan, seed: u64, until: Until) -> Parent<'a> {
        let state = tempfile::NamedTempFile::new().expect("a file for the state");
        Parent { plan, seed, until, began: Instant::now(), state, findings: 0, first: 0 }
    }

    fn run(mut self) -> u64 {
        loop {
            let left = match self.until {
                Until::Cases(cases) => cases.saturating_sub(self.first),
                Until::Seconds(seconds) => seconds.saturating_sub(self.began.elapsed().as_secs()),
            };
            if left == 0 || self.findings >= FINDINGS_MAX as u64 {
                return self.findings;
            }
            let mut child = self.start(left);
            let end = self.watch(&mut child);
            let (case, told) = self.progress();
            self.findings += told;
            let how = match end {
                End::Done => return self.findings,
                End::Grown => {
                    self.first = case;
                    continue;
                }
                End::Died(how) => how,
            };
            self.findings += 1;
            println!(
                "FINDING in {}: {how}; again: SEED={} FUZZ_CASE={case} FUZZ_TARGET={}",
                self.plan.name, self.seed, self.plan.name
            );
            self.first = case + 1;
        }
    }

    fn start(&self, left: u64) -> Child {
        self.state.as_file().write_all_at(&[0; 16], 0).expect("writing the state");
        let (length, kind) = match self.until {
            Until::Cases(_) => (left, "FUZZ_CHILD_CASES"),
            Until::Seconds(_) => (left, "FUZZ_CHILD_SECONDS"),
        };
        Command::new(std::env::current_exe().expect("this program"))
            .env("FUZZ_CHILD", self.plan.name)
            .env("FUZZ_FIRST", self.first.to_string())
            .env("FUZZ_STATE", self.state.path())
            .env(kind, length.to_string())
            .env("SEED", self.seed.to_string())
            // One arena: address space is what is limited.
            .env("MALLOC_ARENA_MAX", "1")
            .spawn()
            .expect("starting a child")
    }

    /// The case that the child is at, and how many findings it told.
    fn progress(&self) -> (u64, u64) {
        let mut bytes = [0; 16];
        self.state.as_file().read_exact_at(&mut bytes, 0).expect("reading the state");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (number(0), number(8))
    }

    /// Until the child ends.
    fn watch(&self, child: &mut Child) -> End {
        let mut since = (u64::MAX, Instant::now(), 0);
        let mut shown = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("waiting for the child") {
                return match status.code() {
                    Some(0) => End::Done,
                    Some(code) if code == i32::from(GROWN) => End::Grown,
                    _ => End::Died(format!("the process died: {status}")),
                };
            }
            let (case, told) = self.progress();
            let cpu = cpu_seconds(child.id());
            if case != since.0 {
                since = (case, Instant::now(), cpu);
            }
            let (waited, used) = (since.1.elapsed().as_secs(), cpu.saturating_sub(since.2));
            if used >= HANG_CPU_SECONDS || waited >= HANG_SECONDS {
                child.kill().expect("killing the child");
                child.wait().expect("the end of the child");
                return End::Died(format!("a hang: {used} s of processor time, {waited} s"));
            }
            if matches!(self.until, Until::Seconds(_)) && shown.elapsed() > Duration::from_secs(15) {
                shown = Instant::now();
                let seconds = self.began.elapsed().as_secs();
                println!("{}: {case} cases in {seconds} s, {} findings", self.plan.name, self.findings + told);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// User and system time of a process so far.
fn cpu_seconds(id: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    (ticks(11) + ticks(12)) / 100
}

/// Where the last panic was, and its message.
static LAST_PANIC: Mutex<Option<(String, String)>> = Mutex::new(None);

fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let message = text.unwrap_or("a panic").to_owned();
        *LAST_PANIC.lock().expect("the last panic") = Some((place, message));
    }));
}

/// Runs one case; a finding as where and what.
fn run_case(target: &mut dyn Target, seed: u64, case: u64, steps: &mut Vec<String>) -> Result<bool, (String, String)> {
    let mut random = random_of(seed, case);
    match catch_unwind(AssertUnwindSafe(|| target.case(&mut random, steps))) {
        Ok(Ok(is_taken)) => Ok(is_taken),
        Ok(Err(wrong)) => Err((wrong.chars().take(60).collect(), wrong)),
        Err(_) => {
            let (place, message) = LAST_PANIC.lock().expect("the last panic").take().unwrap_or_default();
            Err((place.clone(), format!("a panic at {place}: {message}")))
        }
    }
}

fn child(plan: &Plan, seed: u64) -> ExitCode {
    note_panics();
    let state = std::fs::OpenOptions::new().write(true).open(std::env::var_os("FUZZ_STATE").expect("a state file"));
    let state = state.expect("opening the state file");
    let mut target = (plan.make)();
    let first = number_from("FUZZ_FIRST").unwrap_or(0);
    let cases = number_from("FUZZ_CHILD_CASES").unwrap_or(u64::MAX);
    let seconds = number_from("FUZZ_CHILD_SECONDS").map(Duration::from_secs);
    let began = Instant::now();
    let mut findings: BTreeMap<String, u64> = BTreeMap::new();
    let (mut taken, mut limited_at, mut code) = (0, None, ExitCode::SUCCESS);
    let mut case = first;
    while case - first < cases && seconds.is_none_or(|seconds| began.elapsed() < seconds) && findings.len() < FINDINGS_MAX {
        let mut bytes = case.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(findings.len() as u64).to_le_bytes());
        state.write_all_at(&bytes, 0).expect("writing the state");
        if case == first + WARM_UP_CASES {
            limited_at = Some(limit_memory());
        }
        if limited_at.is_some_and(|bytes| memory_bytes() > bytes + GROWTH_BYTES) {
            code = ExitCode::from(GROWN);
            break;
        }
        let mut steps = Vec::new();
        match run_case(&mut *target, seed, case, &mut steps) {
            Ok(is_taken) => taken += u64::from(is_taken),
            Err((key, wrong)) => {
                let count = findings.entry(key).or_default();
                *count += 1;
                if *count == 1 {
                    println!("FINDING in {}: {wrong}; again: SEED={seed} FUZZ_CASE={case} FUZZ_TARGET={}", plan.name, plan.name);
                    steps.iter().for_each(|step| println!("    {step}"));
                }
            }
        }
        case += 1;
    }
    let mut bytes = case.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(findings.len() as u64).to_le_bytes());
    state.write_all_at(&bytes, 0).expect("writing the state");
    let seconds = began.elapsed().as_secs_f64();
    println!("fuzz_{}: {} cases in {seconds:.1} s, {taken} taken, findings {findings:?}", plan.name, case - first);
    code
}

/// One case, here, with everything told.
fn repeat(plan: &Plan, seed: u64, case: u64) -> ExitCode {
    let mut target = (plan.make)();
    let mut steps = Vec::new();
    let mut random = random_of(seed, case);
    let result = catch_unwind(AssertUnwindSafe(|| target.case(&mut random, &mut steps)));
    steps.iter().for_each(|step| println!("    {step}"));
    match result {
        Ok(Ok(is_taken)) => println!("nothing found; taken: {is_taken}"),
        Ok(Err(wrong)) => println!("FINDING: {wrong}"),
        Err(_) => println!("FINDING: a panic, see above"),
    }
    ExitCode::SUCCESS
}

/// Address space in use.
fn memory_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("reading statm");
    statm.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).expect("pages") * 4096
}

fn limit_memory() -> u64 {
    let bytes = memory_bytes();
    let limit = Some(bytes + HEADROOM_BYTES);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).expect("limiting the address space");
    bytes
}
