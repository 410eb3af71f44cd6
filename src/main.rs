//! The command `sumfs`; everything is in [`sumfs::cli`].

/// Runs the command line and ends with its exit code.
fn main() -> std::process::ExitCode {
    sumfs::cli::main()
}
