//! `JUnit` XML output of `bulkhead test`: a test suite per file, a test case per claim.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::report::{Line, Report};

pub(super) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let mut files: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
    for line in &report.claims {
        files.entry(&line.file).or_default().push(line);
    }
    let failures = report.claims.len() - report.passed;
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites name=\"bulkhead test\" tests=\"{}\" failures=\"{failures}\">", report.claims.len())?;
    for (file, lines) in files {
        let failures = lines.iter().filter(|line| line.result != "pass").count();
        let (name, tests) = (escaped(file), lines.len());
        writeln!(out, "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\">")?;
        for line in lines {
            let (claim, at) = (escaped(&line.name), line.line);
            write!(out, "    <testcase classname=\"{name}\" name=\"{claim}\" file=\"{name}\" line=\"{at}\"")?;
            let details = line.details();
            match details.first() {
                None => writeln!(out, "/>")?,
                Some(first) => {
                    let (first, all) = (escaped(first), escaped(&details.join("\n")));
                    writeln!(out, ">\n      <failure type=\"{}\" message=\"{first}\">{all}</failure>", line.result)?;
                    writeln!(out, "    </testcase>")?;
                }
            }
        }
        writeln!(out, "  </testsuite>")?;
    }
    writeln!(out, "</testsuites>")
}

/// Escapes text for XML 1.0, and drops control characters except tab, line feed and carriage return, which XML cannot represent.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.extend(c.escape_unicode()),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_reads_otherwise_is_escaped() {
        assert_eq!(escaped("a<b>&\"c\"\u{1b}\n"), "a&lt;b&gt;&amp;&quot;c&quot;\\u{1b}\n");
    }
}
