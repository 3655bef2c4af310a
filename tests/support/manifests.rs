//! Reads the manifests of `deploy/` as objects, and renders the Helm chart.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Parses a multi-document YAML text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the objects of a folder's kustomization.yaml, with its image names applied.
pub(crate) fn kustomized(folder: &Path) -> Vec<Value> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let kustomization = documents(&read("kustomization.yaml")).remove(0);
    let mut objects: Vec<Value> = Vec::new();
    for name in kustomization["resources"].as_array().unwrap() {
        objects.extend(documents(&read(name.as_str().unwrap())));
    }
    for image in kustomization["images"].as_array().unwrap() {
        let named = format!("{}:{}", image["newName"].as_str().unwrap(), image["newTag"].as_str().unwrap());
        for container in objects.iter_mut().flat_map(containers_mut) {
            if container["image"] == image["name"] {
                container["image"] = named.clone().into();
            }
        }
    }
    objects
}

/// Returns the containers of a workload, including init containers.
pub(crate) fn containers_mut(object: &mut Value) -> Vec<&mut Value> {
    let Some(spec) = object.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let lists = spec.iter_mut().filter(|(name, _)| ["initContainers", "containers"].contains(&name.as_str()));
    lists.flat_map(|(_, list)| list.as_array_mut().unwrap()).collect()
}

/// Returns the same as [`containers_mut`], without mutable access.
pub(crate) fn containers(object: &Value) -> Vec<&Value> {
    let lists = ["initContainers", "containers"].map(|name| &object["spec"]["template"]["spec"][name]);
    lists.into_iter().filter_map(Value::as_array).flatten().collect()
}

/// Renders a chart with its default values. Supports only what these templates use, and panics on anything else.
pub(crate) fn rendered(chart: &Path, namespace: &str) -> Vec<Value> {
    let values = documents(&fs::read_to_string(chart.join("values.yaml")).unwrap()).remove(0);
    let mut files: Vec<_> = fs::read_dir(chart.join("templates")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let template = fs::read_to_string(&file).unwrap();
        objects.extend(documents(&render(&template, &values, namespace)));
    }
    objects
}

fn render(template: &str, values: &Value, namespace: &str) -> String {
    let (mut text, mut is_left_out) = (String::new(), false);
    for line in template.lines() {
        // `{{- if .Values.x }}` and `{{- end }}` are alone on their lines, and are not nested.
        if let Some(path) = line.trim().strip_prefix("{{- if ").and_then(|rest| rest.strip_suffix(" }}")) {
            is_left_out = value(path, values).is_null();
            continue;
        }
        if line.trim() == "{{- end }}" {
            is_left_out = false;
            continue;
        }
        if is_left_out {
            continue;
        }
        // `{{- toYaml .Values.x | nindent N }}` is always alone on its line.
        if let Some(expression) = line.trim().strip_prefix("{{- toYaml ") {
            let (path, indent) = expression.strip_suffix(" }}").unwrap().split_once(" | nindent ").unwrap();
            let indent = " ".repeat(indent.parse().unwrap());
            match value(path, values) {
                Value::Object(fields) => {
                    fields.iter().for_each(|(key, value)| text += &format!("{indent}{key}: {value}\n"));
                }
                Value::Array(items) => items.iter().for_each(|item| text += &format!("{indent}- {item}\n")),
                other => panic!("{line}: {other} is neither a mapping nor a list"),
            }
            continue;
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("{{ ") {
            let (expression, after) = after.split_once(" }}").unwrap_or_else(|| panic!("{line}"));
            text += before;
            match (expression, expression.strip_prefix("toJson ")) {
                (".Release.Namespace", _) => text += namespace,
                (_, Some(path)) => text += &value(path, values).to_string(),
                (path, None) => match value(path, values) {
                    Value::String(word) => text += word,
                    number @ Value::Number(_) => text += &number.to_string(),
                    other => panic!("{line}: {other} needs toYaml or toJson"),
                },
            }
            rest = after;
        }
        assert!(!rest.contains("{{"), "the templates are kept to what this test can render: {line}");
        text += rest;
        text.push('\n');
    }
    text
}

fn value<'a>(path: &str, values: &'a Value) -> &'a Value {
    let path = path.strip_prefix(".Values").unwrap_or_else(|| panic!("{path}: only values are known"));
    values.pointer(&path.replace('.', "/")).unwrap_or_else(|| panic!("values.yaml has no {path}"))
}
