//! Finds circles between the modules of a crate: files that use each other's items, directly or indirectly. Reads `use` trees and paths
//! with `::` as text. A re-exported name belongs to the module that defines it, so a folder's `mod.rs` may re-export its files' items. A
//! file below a module's folder is part of that module and may use its items. Tests are ignored: they may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::step::root;

/// The crates of the product.
const CRATES: [&str; 11] =
    ["src", "answers", "migrate", "observe", "node", "cni", "cluster", "control", "classifier", "dataplane", "hello"];

/// A crate's modules, by path from the crate's root.
type Modules = BTreeMap<Vec<String>, Module>;

struct Module {
    file: PathBuf,
    tokens: Vec<String>,
    /// Names that `use` brings in, with the full paths of their items. `*` lists the globs.
    uses: BTreeMap<String, Vec<Vec<String>>>,
}

/// Prints each circle with the items that cause it. Returns true if no crate has a circle.
pub(crate) fn run() -> bool {
    match count(true) {
        Ok(circles) => circles == 0,
        Err(error) => {
            eprintln!("circles: {error}");
            false
        }
    }
}

/// Counts the circles. Prints each with the items that cause it if `print` is set.
pub(crate) fn count(print: bool) -> Result<u64, String> {
    let mut circles = 0;
    for name in CRATES {
        let folder = if name == "src" { root().join("src") } else { root().join(name).join("src") };
        let modules = read(&folder)?;
        let arrows = arrows(&modules);
        for circle in tied(&arrows) {
            circles += 1;
            if print {
                show(&circle, &modules, &arrows);
            }
        }
    }
    Ok(circles)
}

fn show(circle: &BTreeSet<Vec<String>>, modules: &Modules, arrows: &Arrows) {
    println!("circle of {} files:", circle.len());
    let file =
        |module| modules[module].file.strip_prefix(root()).unwrap_or(&modules[module].file).display().to_string();
    for from in circle {
        for (to, names) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
            println!("  {} -> {}: {}", file(from), file(to), names.iter().cloned().collect::<Vec<_>>().join(", "));
        }
    }
}

/// Reads the files below a crate's `src`, without tests.
fn read(folder: &Path) -> Result<Modules, String> {
    let mut files = Vec::new();
    list(folder, &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    let text = |file: PathBuf| match fs::read_to_string(&file) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(format!("{}: {error}", file.display())),
    };
    Ok(modules(folder, files.into_iter().map(text).collect::<Result<_, _>>()?))
}

fn modules(folder: &Path, files: Vec<(PathBuf, String)>) -> Modules {
    let mut modules = Modules::new();
    for (file, text) in files {
        let below = file.strip_prefix(folder).unwrap_or(&file).with_extension("");
        let mut path: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if path.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
            path.pop();
        }
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        modules.insert(path, Module { file, tokens: tokens(text), uses: BTreeMap::new() });
    }
    let known: BTreeSet<Vec<String>> = modules.keys().cloned().collect();
    for (path, module) in &mut modules {
        module.uses = uses(path, &module.tokens, &known);
    }
    modules
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let test = stem == "testbed" || stem.starts_with("tests") || stem.ends_with("tests") || stem.ends_with("_test");
        if test {
            continue;
        }
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Splits a source text into words and signs, without comments and strings.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            string(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the string literal at the beginning of a text.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, sign) in text.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the names that a module's `use` and `mod` lines bind.
fn uses(path: &[String], tokens: &[String], known: &BTreeSet<Vec<String>>) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut bound = BTreeMap::<String, Vec<Vec<String>>>::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "mod" if tokens.get(at + 2).is_some_and(|next| next == ";") => {
                let child = [path, &tokens[at + 1..=at + 1]].concat();
                bound.entry(tokens[at + 1].clone()).or_default().push(child);
            }
            "use" => {
                let mut leaves = Vec::new();
                tree(&tokens[at + 1..], Vec::new(), &mut leaves);
                for (name, leaf) in leaves {
                    if let Some(whole) = absolute(&leaf, path, known) {
                        bound.entry(name).or_default().push(whole);
                    }
                }
            }
            _ => {}
        }
    }
    bound
}

/// Parses one `use` tree. Returns the number of tokens.
fn tree(tokens: &[String], mut prefix: Vec<String>, leaves: &mut Vec<(String, Vec<String>)>) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at += tree(&tokens[at..], prefix.clone(), leaves);
                    // Not a tree: the word `use` in a macro or a text.
                    if tokens.get(at).is_none_or(|token| token == ";") {
                        break;
                    }
                    at += usize::from(tokens[at] == ",");
                }
                return at + 1;
            }
            "," | "}" | ";" | "as" => break,
            part => {
                prefix.push(part.to_owned());
                at += 1;
            }
        }
    }
    if prefix.last().is_some_and(|last| last == "self") {
        prefix.pop();
    }
    let renamed = tokens.get(at).is_some_and(|token| token == "as");
    let name = if renamed { tokens.get(at + 1).cloned() } else { prefix.last().cloned() };
    leaves.push((name.unwrap_or_default(), prefix));
    at + if renamed { 2 } else { 0 }
}

/// Resolves a path to one from the crate's root. `None` if it leads to another crate.
fn absolute(path: &[String], at: &[String], known: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => at.to_vec(),
        "super" => at[..at.len().checked_sub(1)?].to_vec(),
        // A path of `use` without a prefix names a module below this one.
        child => {
            let below = [at, &[child.to_owned()]].concat();
            return known.contains(&below).then(|| [at, path].concat());
        }
    };
    for part in &path[1..] {
        if part == "super" {
            from.pop()?;
        } else {
            from.push(part.clone());
        }
    }
    Some(from)
}

/// The modules whose items each module uses, with the items' names.
type Arrows = BTreeMap<Vec<String>, BTreeMap<Vec<String>, BTreeSet<String>>>;

fn arrows(modules: &Modules) -> Arrows {
    let known: BTreeSet<Vec<String>> = modules.keys().cloned().collect();
    let mut arrows = Arrows::new();
    for (from, module) in modules {
        let to = arrows.entry(from.clone()).or_default();
        let mut paths: Vec<Vec<String>> = Vec::new();
        for (name, bound) in module.uses.iter().filter(|(name, _)| *name != "*") {
            // A re-export alone is not a use by this module.
            let own = module.tokens.windows(2).filter(|pair| &pair[0] == name && pair[1] != "::").count();
            if own > 1 {
                paths.extend(bound.iter().cloned());
            }
        }
        for glob in module.uses.get("*").into_iter().flatten() {
            // A glob brings in what it defines and this module names.
            let below = |token: &String| [&glob[..glob.len() - 1], std::slice::from_ref(token)].concat();
            let words: BTreeSet<&String> = module.tokens.iter().collect();
            let is_defined = |path: &Vec<String>| {
                owner(path, modules, 0).is_some_and(|(module, name)| defines(&modules[&module], &name))
            };
            paths.extend(words.into_iter().map(below).filter(is_defined));
        }
        paths.extend(spelled(module, from, &known));
        for path in paths {
            if let Some((module, name)) = owner(&path, modules, 0)
                && !from.starts_with(&module)
            {
                to.entry(module).or_default().insert(name);
            }
        }
    }
    arrows
}

/// Returns the paths with `::` in a module's code, outside `use`.
fn spelled(module: &Module, at: &[String], known: &BTreeSet<Vec<String>>) -> Vec<Vec<String>> {
    let (mut paths, tokens, mut index) = (Vec::new(), &module.tokens, 0);
    while index < tokens.len() {
        if tokens[index] == "use" {
            index += tokens[index..].iter().position(|token| token == ";").unwrap_or(1);
        }
        let mut path = vec![tokens[index].clone()];
        while tokens.get(index + 1).is_some_and(|token| token == "::")
            && tokens.get(index + 2).is_some_and(|part| part.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        {
            path.push(tokens[index + 2].clone());
            index += 2;
        }
        index += 1;
        if path.len() < 2 {
            continue;
        }
        match module.uses.get(&path[0]) {
            Some(bound) => paths.extend(bound.iter().map(|whole| [whole, &path[1..]].concat())),
            None => paths.extend(absolute(&path, at, known)),
        }
    }
    paths
}

/// Returns the module that defines the item of a path, and the item's name. `None` if the path names a module or leads out of the crate.
fn owner(path: &[String], modules: &Modules, depth: usize) -> Option<(Vec<String>, String)> {
    let length = (0..=path.len()).rev().find(|&length| modules.contains_key(&path[..length]))?;
    let (at, rest) = path.split_at(length);
    let name = rest.first()?;
    let module = &modules[at];
    if name == "*" || depth > 8 || defines(module, name) {
        return Some((at.to_vec(), name.clone()));
    }
    let passed_on = module.uses.get(name).into_iter().flatten();
    let globs = module.uses.get("*").into_iter().flatten();
    let direct = passed_on.filter(|whole| whole.as_slice() != path).find_map(|whole| owner(whole, modules, depth + 1));
    direct.or_else(|| {
        globs.into_iter().find_map(|glob| {
            let below = [&glob[..glob.len() - 1], std::slice::from_ref(name)].concat();
            let found = owner(&below, modules, depth + 1)?;
            defines(&modules[&found.0], name).then_some(found)
        })
    })
}

fn defines(module: &Module, name: &str) -> bool {
    const KINDS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
    let tokens = &module.tokens;
    tokens.windows(2).any(|pair| KINDS.contains(&pair[0].as_str()) && pair[1] == name)
        || tokens.windows(3).any(|three| three[0] == "macro_rules" && three[2] == name)
}

/// Returns the largest sets of modules that use each other, directly or indirectly.
fn tied(arrows: &Arrows) -> Vec<BTreeSet<Vec<String>>> {
    let reached = |from: &Vec<String>| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            for to in arrows.get(&next).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = arrows.keys().map(|from| (from, reached(from))).collect();
    let mut circles = BTreeSet::new();
    for (from, to) in &all {
        let circle: BTreeSet<Vec<String>> = to.iter().filter(|&other| all[other].contains(*from)).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect();
        let circles = tied(&arrows(&modules(Path::new(""), files)));
        circles.into_iter().map(|circle| circle.into_iter().map(|module| module.join("::")).collect()).collect()
    }

    #[test]
    fn modules_that_use_each_others_items_are_a_circle_however_they_name_them() {
        let b = ("b.rs", "use crate::a::{self as first, other};\npub struct Two(first::One);\nfn f() { other() }");
        for a in
            ["use super::b::Two;\nstruct One(Two);", "struct One(crate::b::Two);", "use crate::*;\nstruct One(Two);"]
        {
            let a = format!("{a} pub fn other() {{}}");
            let lib = ("lib.rs", "mod a;\nmod b;\npub use b::Two;");
            let found = circles(&[lib, ("a.rs", &a), b]);
            assert!(
                found.iter().any(|circle| circle.contains(&"a".to_owned()) && circle.contains(&"b".to_owned())),
                "{a}"
            );
        }
    }

    #[test]
    fn reexports_comments_strings_tests_and_a_folders_own_head_make_no_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::One;\npub use b::Two;"),
            (
                "a.rs",
                "mod part;\n// use crate::b::Two;\npub struct One; const T: &str = \"crate::b::Two\"; use part::Part; fn f(_: Part) {}",
            ),
            ("a/part.rs", "use super::One;\npub struct Part(One);"),
            ("b.rs", "use crate::One;\npub struct Two(One);\n#[cfg(test)]\nmod tests {\nuse crate::a::f; }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
