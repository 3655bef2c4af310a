// The page around the program: turns the form into a command line, runs it (wasi.js), and shows the output.
"use strict";

const at = (id) => document.getElementById(id);
const decode = (bytes) => new TextDecoder().decode(bytes);
const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

// Larger matrices are shown as text: a table of this many buttons is slow to draw and too large to read.
const MOST_ENDS = 60;
// Pause in typing, in milliseconds, after which the answer is updated, and the longest duration of the last answer for which it is.
const REST = 500;
const QUICK = 300;

const STATE = "state.yaml", NEW = "new.yaml", CLAIMS = "claims.yaml";
const TEXTS = { [STATE]: "state", [NEW]: "new", [CLAIMS]: "claims" };

// The dropped file: {name, bytes, isCapture}.
let captured;
let program;
let question = "matrix";
let took = 0;

// The first example is shown at the start.
const examples = {
  "A team tightens its shop": {
    state: "pcaps/shop/state.yaml",
    added: "examples/shop/policies.yaml",
    claims: "examples/shop/claims.yaml",
    capture: "pcaps/shop/in.pcap",
    ports: "6379/TCP 8080/TCP 8000/TCP",
    external: "192.0.2.1",
    explain: ["shop/web-7d9c5b6f4d-zq8wn", "shop/db-0", "6379/TCP"],
  },
  "A redis server and three clients": {
    state: "pcaps/redis-policy/state.yaml",
    capture: "pcaps/redis-policy/in.pcapng",
    ports: "6379/TCP",
    explain: ["default/frontend", "default/db", "6379/TCP"],
  },
};
const example = (path) => (path === undefined ? "" : document.querySelector(`.example[data-path="${path}"]`).textContent);

// ---- The questions ----------------------------------------------------------------------------------------------------

const isChanged = () => at("new").value.trim() !== "";
const after = () => (!isChanged() ? [STATE] : at("new-is").value === "added" ? [STATE, NEW] : [NEW]);
const judged = () => (at("judged").value === "new" ? after() : [STATE]);
const words = (id) => at(id).value.split(/[\s,]+/).filter((word) => word !== "");
const traffic = () => (!captured ? [] : captured.isCapture ? [captured.name] : ["--flows", captured.name]);
const ask = (text) => ({ ask: text });

// By tab: the words of the command line, or the reason why it is incomplete.
const questions = {
  matrix: () => {
    const ports = words("ports").flatMap((port) => ["--port", port]);
    if (ports.length === 0) return ask("Name at least one port, such as 80/TCP.");
    return ["reach", "--state", ...judged(), ...ports, ...words("external").flatMap((address) => ["--external", address])];
  },
  explain: () => {
    const [from, to, port] = ["from", "to", "port"].map((id) => at(id).value.trim());
    if (!from || !to) return ask("Name both ends: a pod (namespace/name), a Service (service/namespace/name) or an address.");
    return ["explain", "--state", ...judged(), "--from", from, "--to", to, ...(port ? ["--port", port] : [])];
  },
  diff: () => {
    if (!isChanged()) return ask("Paste a new state to compare with.");
    return ["diff", "--state", STATE, "--against", ...after(), ...traffic(), ...(at("ungrouped").checked ? ["--ungrouped"] : [])];
  },
  replay: () => {
    if (!captured) return ask("Drop a capture or a flow log.");
    if (!captured.isCapture) return ["replay", "--state", ...judged(), ...traffic()];
    return ["replay", "--state", ...judged(), "--node", at("node").value, "--write", "judged.pcapng", captured.name];
  },
  learn: () => (captured ? ["learn", "--state", ...judged(), ...traffic()] : ask("Drop a capture or a flow log to learn from.")),
  lint: () => ["lint", "--state", ...judged()],
  test: () => {
    if (at("claims").value.trim() === "") return ask("Write claims: what must never, always or only be possible.");
    return ["test", "--state", ...judged(), CLAIMS];
  },
};

// The meaning of exit code 1, which is not an error.
const ONE = { explain: "denied", diff: "there are differences", test: "not all claims hold", learn: "not all that was seen is allowed" };

// ---- Running the program ----------------------------------------------------------------------------------------------

const files = () => {
  const encode = (id) => new TextEncoder().encode(at(id).value);
  const files = Object.fromEntries(Object.entries(TEXTS).map(([name, id]) => [name, encode(id)]));
  if (captured) files[captured.name] = captured.bytes;
  return files;
};

const bulkhead = (args) => wasi.run(program, { args: ["bulkhead", ...args], files: files() });

// Number of requested answers. An answer to an earlier request is not shown.
let asked = 0;

const answer = async () => {
  if (!program) return;
  asked += 1;
  const mine = asked;
  for (const id of ["error", "notes"]) at(id).hidden = true;
  for (const id of ["result", "actions", "command", "status"]) at(id).replaceChildren();
  nodes();
  const args = questions[question]();
  if (args.ask) {
    at("result").append(element("p", { className: "quiet" }, args.ask));
    return;
  }
  at("command").textContent = ["bulkhead", ...args].join(" ");
  const started = performance.now();
  const told = await bulkhead(question === "matrix" ? [...args, "-o", "json"] : args);
  if (mine !== asked) return;
  took = performance.now() - started;
  const said = told.code === 0 ? "" : told.code === 1 ? `${ONE[question] ?? "no"} · ` : "error · ";
  at("status").textContent = `${said}exit code ${told.code} · ${took.toFixed(0)} ms`;
  const [out, notes] = [decode(told.stdout), decode(told.stderr).trim()];
  if (told.code > 1) {
    at("error").replaceChildren(...marked(notes || "The program ended without a word."));
    at("error").hidden = false;
  } else if (notes !== "") {
    at("notes").replaceChildren(...marked(notes));
    at("notes").hidden = false;
  }
  if (question === "matrix" && told.code <= 1) {
    await matrix(JSON.parse(out), args);
  } else if (out !== "") {
    // Learned policies are not verdicts, so their words are not coloured.
    const shown = question === "learn" ? [out] : marked(out);
    at("result").append(element("pre", { className: question === "replay" ? "wide" : "" }, ...shown));
  }
  if (question === "replay" && told.written["judged.pcapng"] && told.code <= 1) {
    action("Save the capture with verdicts", () => save("judged.pcapng", told.written["judged.pcapng"]));
  }
  if (question === "learn" && told.code <= 1 && out.trim() !== "") {
    action("Add these policies to the new state", () => {
      // Learned policies are added to the policies that were in force, so they are appended to them.
      const before = at("judged").value === "new" ? at("new").value.trimEnd() : "";
      at("new").value = before === "" ? out : `${before}\n---\n${out}`;
      if (before === "") at("new-is").value = "added";
      changed();
      choose("diff");
    });
  }
};

// Lets the browser show the status before the program blocks it.
const run = () => {
  at("status").textContent = "working";
  setTimeout(() => answer().catch(failed), 0);
};

// ---- Showing ----------------------------------------------------------------------------------------------------------

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

// Returns the text with coloured verdicts, and with links to places in the input.
const MARKS = /\b(state\.yaml|new\.yaml|claims\.yaml):(\d+)|\b(ALLOW|allow|allowed|PASS|forward|opened)\b|\b(DENY|deny|denied|FAIL|VACUOUS|drop|dropped|cut)\b/g;
const marked = (text) => {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(MARKS)) {
    parts.push(text.slice(last, found.index));
    const [all, name, line, good] = found;
    if (name) {
      parts.push(element("button", { type: "button", className: "place", onclick: () => go(name, Number(line)) }, all));
    } else {
      parts.push(element("span", { className: good ? "allow" : "deny" }, all));
    }
    last = found.index + all.length;
  }
  parts.push(text.slice(last));
  return parts;
};

// Selects a line of the input.
const go = (name, line) => {
  if (name === CLAIMS) choose("test");
  const area = at(TEXTS[name]);
  const lines = area.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
  area.focus();
  area.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  const height = Number.parseFloat(getComputedStyle(area).lineHeight);
  area.scrollTop = Math.max(0, (line - 1) * height - area.clientHeight / 3);
  area.scrollIntoView({ block: "center" });
};

const matrix = async ({ probes }, args) => {
  const ends = [...new Set(probes.map((probe) => probe.from))];
  suggest(ends);
  if (ends.length === 0) {
    at("result").append(element("p", { className: "quiet" }, "The state has no pods or workloads."));
    return;
  }
  if (ends.length > MOST_ENDS) {
    const { stdout } = await bulkhead(args);
    at("result").replaceChildren(element("pre", { className: "wide" }, decode(stdout)));
    return;
  }
  const tables = Map.groupBy ? Map.groupBy(probes, title) : grouped(probes);
  for (const [name, probes] of tables) {
    const verdicts = new Map(probes.map((probe) => [`${probe.from} ${probe.to}`, probe]));
    const shown = ends.filter((end) => probes.some((probe) => probe.from === end || probe.to === end));
    const head = element("tr", {}, element("th", { scope: "col" }, "from \\ to"), ...shown.map((end) => element("th", { scope: "col", title: end }, element("span", {}, end))));
    const rows = shown.map((from) => element("tr", {}, element("th", { scope: "row", title: from }, element("bdi", {}, from)), ...shown.map((to) => cell(verdicts.get(`${from} ${to}`)))));
    at("result").append(element("h2", {}, name), element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  }
  at("result").append(element("p", { className: "quiet" }, "✓ allowed, ✕ denied. Choose a cell for the reason."));
};

const title = (probe) => `${probe.protocol} ${probe.port} over ${probe.family}`;
const grouped = (probes) => {
  const groups = new Map();
  for (const probe of probes) groups.set(title(probe), [...(groups.get(title(probe)) ?? []), probe]);
  return groups;
};

const cell = (probe) => {
  if (!probe) return element("td", { className: "self" });
  const { from, to, protocol, port, verdict } = probe;
  const isAllowed = verdict === "allow";
  const button = element("button", { type: "button", className: isAllowed ? "allow" : "deny", title: `${from} → ${to}: ${verdict}` }, isAllowed ? "✓" : "✕");
  button.setAttribute("aria-label", `${from} to ${to}: ${verdict}`);
  button.onclick = () => {
    [at("from").value, at("to").value, at("port").value] = [from, to, `${port}/${protocol}`];
    choose("explain");
  };
  return element("td", {}, button);
};

const suggest = (ends) => at("ends").replaceChildren(...ends.map((end) => element("option", { value: end })));

// Offers the state's nodes for selection.
const nodes = () => {
  const names = new Set();
  for (const name of judged()) {
    const text = at(TEXTS[name]).value;
    for (const [, node] of text.matchAll(/"?\bnodeName"?:\s*"?([\w.-]+)/g)) names.add(node);
  }
  const chosen = at("node").value;
  at("node").replaceChildren(...[...names].sort().map((name) => element("option", { value: name }, name)));
  if (names.has(chosen)) at("node").value = chosen;
};

const action = (text, onclick) => at("actions").append(element("button", { type: "button", onclick }, text));

const save = (name, bytes) => {
  const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

// ---- The tabs ---------------------------------------------------------------------------------------------------------

const choose = (name) => {
  question = name;
  for (const tab of at("tabs").children) {
    const isChosen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
  at("panel").setAttribute("aria-labelledby", `tab-${name}`);
  for (const label of document.querySelectorAll("[data-for]")) label.hidden = label.dataset.for !== name;
  at("option-judged").hidden = !isChanged() || name === "diff";
  run();
};

// Creates a tab for each question that the program can answer.
const tabs = async () => {
  const help = decode((await bulkhead(["--help"])).stdout);
  const commands = new Set([...help.matchAll(/^ {2}([a-z-]+) {2,}/gm)].map(([, name]) => name));
  for (const name of Object.keys(questions)) {
    if (!commands.has(name === "matrix" ? "reach" : name)) continue;
    const tab = element("button", { type: "button", id: `tab-${name}`, onclick: () => choose(name) }, name);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "panel");
    tab.dataset.tab = name;
    at("tabs").append(tab);
  }
  at("tabs").addEventListener("keydown", (event) => {
    const all = [...at("tabs").children];
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -all.length, End: all.length };
    if (!(event.key in steps)) return;
    const here = all.indexOf(document.activeElement);
    const there = Math.abs(steps[event.key]) === 1 ? (here + steps[event.key] + all.length) % all.length : steps[event.key] < 0 ? 0 : all.length - 1;
    all[there].focus();
    choose(all[there].dataset.tab);
    event.preventDefault();
  });
};

// ---- The input --------------------------------------------------------------------------------------------------------

const take = (name, bytes) => {
  // Magic numbers of pcap (both orders of bytes, micro- and nanoseconds) and pcapng.
  const magic = [...bytes.subarray(0, 4)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const isCapture = ["a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"].includes(magic);
  // A name of one word that no text field has, with an extension for the kind of file.
  let plain = name.replace(/[^\w.-]+/g, "_").replace(/^[-.]+/, "") || "capture";
  if (isCapture && !/\.(pcap|pcapng|cap)$/.test(plain)) plain += ".pcap";
  if (!isCapture && plain in TEXTS) plain = `flows-${plain}`;
  captured = { name: plain, bytes, isCapture };
  at("captured").textContent = `${plain}, ${bytes.length.toLocaleString("en")} bytes${isCapture ? "" : ", read as a flow log"}`;
  at("forget").hidden = false;
};

const forget = () => {
  captured = undefined;
  at("captured").textContent = "";
  at("forget").hidden = true;
  at("file").value = "";
};

// Kubernetes objects have a kind; flow logs have none.
const isState = (bytes) => /^\s*(- )?"?kind"?\s*:|"kind"\s*:/m.test(decode(bytes.subarray(0, 1 << 16)));

// Receives files dropped on a text field or beside one.
const receive = async (list, area) => {
  for (const file of list) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (area) {
      area.value = decode(bytes);
    } else if (isState(bytes)) {
      at("state").value = decode(bytes);
    } else {
      take(file.name, bytes);
    }
  }
  changed();
  if (!area && captured && !["diff", "learn"].includes(question)) choose("replay");
  else run();
};

const changed = () => {
  at("option-judged").hidden = !isChanged() || question === "diff";
};

const load = (name) => {
  const { state, added, claims, capture, ports, external, explain } = examples[name] ?? {};
  at("state").value = example(state);
  at("new").value = example(added);
  at("new-is").value = "added";
  at("claims").value = example(claims);
  at("ports").value = ports ?? "80/TCP";
  at("external").value = external ?? "";
  [at("from").value, at("to").value, at("port").value] = explain ?? ["", "", "80/TCP"];
  if (capture) take(capture.replace(/^pcaps\/(.*)\/in/, "$1"), fromBase64(example(capture)));
  else forget();
  changed();
};

const listen = () => {
  for (const name of Object.keys(examples)) at("example").append(element("option", { value: name }, name));
  at("example").append(element("option", { value: "" }, "none"));
  at("example").onchange = () => { load(at("example").value); run(); };
  at("clear").onclick = () => { at("example").value = ""; load(""); at("state").focus(); run(); };
  at("forget").onclick = () => { forget(); run(); };
  at("file").onchange = () => receive(at("file").files);
  at("run").onclick = run;
  let waiting;
  const later = () => {
    changed();
    clearTimeout(waiting);
    if (took < QUICK) waiting = setTimeout(run, REST);
  };
  for (const id of ["state", "new", "claims", "ports", "external", "from", "to", "port"]) at(id).addEventListener("input", later);
  for (const id of ["new-is", "judged", "ungrouped", "node"]) at(id).addEventListener("change", run);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (event.key === "Enter" && event.target.matches(".options input")) run();
  });
  // Without this, a file dropped beside the zones would replace the page.
  for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
  for (const [zone, area] of [[at("drop")], [at("state"), at("state")], [at("new"), at("new")], [at("claims"), at("claims")]]) {
    zone.addEventListener("dragover", () => zone.classList.add("over"));
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      zone.classList.remove("over");
      if (event.dataTransfer.files.length > 0) receive(event.dataTransfer.files, area);
    });
  }
};

const start = async () => {
  listen();
  load(at("example").value);
  at("status").textContent = "unpacking the program";
  const packed = new Blob([fromBase64(at("program").textContent.trim())]);
  const bytes = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  program = await WebAssembly.compile(bytes);
  await tabs();
  at("version").textContent = `${decode((await bulkhead(["--version"])).stdout).trim()}.`;
  choose("matrix");
};

const failed = (error) => {
  at("error").textContent = `The program cannot be run in this browser: ${error}`;
  at("error").hidden = false;
};

start().catch(failed);
