//! Reads a process's values below `/proc`.

use std::time::Duration;

use anyhow::Context;

/// Returns a process's resident memory in KiB, including packet buffers.
///
/// # Errors
/// If the process does not exist.
pub(crate) fn resident(id: u32) -> anyhow::Result<i64> {
    Ok(field(&format!("/proc/{id}/status"), "VmRSS")?.cast_signed())
}

/// Reads the number in a line `name: number kB`, in KiB.
///
/// # Errors
/// If the file or the line does not exist.
pub(crate) fn field(file: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number =
        line.and_then(|rest| rest.split_whitespace().next()).with_context(|| format!("{file} has no {name}"))?;
    Ok(number.parse()?)
}

/// Returns the CPU time of all threads of a process.
///
/// # Errors
/// If the process does not exist.
pub(crate) fn running_time(id: u32) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_what_it_has() {
        assert!(resident(std::process::id()).unwrap() > 0);
        assert!(running_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(resident(u32::MAX).is_err());
    }
}
