// Opens the page's file in a headless Chromium and uses it as a person would. Exits with 0, or prints a fault and exits with 1.
//
//   node dev/playground/browser.cjs target/playground/index.html [FOLDER for screenshots]
//
// Uses the DevTools protocol over two pipes, so that it needs no package and opens no port.
// Source: https://chromedevtools.github.io/devtools-protocol/
"use strict";

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

// A time limit in milliseconds, for a browser that hangs. A run takes some seconds.
const LIMIT = 60_000;
const POLL = 50;

const [page, screenshots] = process.argv.slice(2);
const url = pathToFileURL(page).href;
const profile = fs.mkdtempSync(path.join(os.tmpdir(), "bulkhead-playground-"));
const browser = spawn(
  process.env.BULKHEAD_CHROMIUM ?? "/usr/bin/chromium",
  [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--log-level=3", `--user-data-dir=${profile}`,
    "--remote-debugging-pipe", "about:blank",
  ],
  // A separate process group, so that all processes of the browser can be ended.
  { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"], detached: true },
);
let log = "";
browser.stderr.on("data", (data) => { log = (log + data).slice(-4000); });

const end = (code) => {
  try {
    process.kill(-browser.pid, "SIGKILL");
  } catch {
    // The browser has ended.
  }
  try {
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 3 });
  } catch {
    // Processes of the browser may still write to the profile.
  }
  process.exit(code);
};
const fail = (text) => {
  console.error(`browser: ${text}`);
  if (log) console.error(log);
  end(1);
};
setTimeout(() => fail(`not done after ${LIMIT / 1000} s, at: ${step}; ${seen}; ${complaints.join("; ")}`), LIMIT);
browser.on("error", (error) => fail(`cannot start Chromium: ${error.message}`));
browser.on("exit", (code) => fail(`Chromium has ended with ${code}`));

let step = "start";
// The last text of the page.
let seen = "nothing seen";
let number = 0;
const waiting = new Map();
const requested = [];
const complaints = [];
const send = (method, params = {}, sessionId = undefined) => {
  number += 1;
  browser.stdio[3].write(`${JSON.stringify({ id: number, method, params, sessionId })}\0`);
  return new Promise((resolve, reject) => waiting.set(number, { resolve, reject }));
};
let buffer = "";
browser.stdio[4].setEncoding("utf8");
browser.stdio[4].on("data", (text) => {
  const messages = (buffer + text).split("\0");
  buffer = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    const { resolve, reject } = waiting.get(message.id) ?? {};
    waiting.delete(message.id);
    if (message.error) reject?.(new Error(message.error.message));
    else resolve?.(message.result);
    if (message.method === "Network.requestWillBeSent") requested.push(message.params.request.url);
    if (message.method === "Runtime.exceptionThrown") complaints.push(message.params.exceptionDetails.exception?.description ?? message.params.exceptionDetails.text);
    if (message.method === "Log.entryAdded" && message.params.entry.level === "error") complaints.push(message.params.entry.text);
  }
});

const main = async () => {
  const { targetInfos } = await send("Target.getTargets");
  const { targetId } = targetInfos.find(({ type }) => type === "page");
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  const tell = (method, params) => send(method, params, sessionId);
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await tell("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${step}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  const until = async (what, expression) => {
    step = what;
    while (!(await evaluate(expression))) {
      seen = await evaluate(`document.getElementById("status").textContent + " " + document.getElementById("error").textContent`);
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
  };
  const shows = (what, text, where = "panel") => until(what, `document.getElementById(${JSON.stringify(where)}).textContent.includes(${JSON.stringify(text)})`);
  const press = (selector) => evaluate(`document.querySelector(${JSON.stringify(selector)}).click()`);
  const picture = async (name) => {
    if (!screenshots) return;
    const { data } = await tell("Page.captureScreenshot", { captureBeyondViewport: false });
    fs.writeFileSync(path.join(screenshots, `${name}.png`), Buffer.from(data, "base64"));
  };
  const screen = (width, height, scheme) => Promise.all([
    tell("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 }),
    tell("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] }),
  ]);

  step = "open the page";
  await Promise.all(["Page.enable", "Runtime.enable", "Network.enable", "Log.enable"].map((method) => tell(method)));
  await screen(1440, 900, "light");
  await tell("Page.navigate", { url });
  await until("the program starts and the example's matrix is there", `document.querySelectorAll("#result table").length >= 1`);
  await picture("matrix");
  // With the new state, only the API may connect to the database.
  await until("the matrix says who may ask the database",
    `[...document.querySelectorAll("#result [aria-label$='to shop/db-0: allow'].allow")].map((cell) => cell.ariaLabel).join() === "shop/api-5f7c8d9b6-m4jhs to shop/db-0: allow"`);

  step = "a cell leads to its reason";
  await press(`[aria-label="shop/web-7d9c5b6f4d-zq8wn to shop/db-0: deny"]`);
  await shows("explain says why", "shop/web-7d9c5b6f4d-zq8wn (10.244.1.4) -> shop/db-0");
  await shows("explain says DENY", "DENY");
  await shows("explain names the file and line", "new.yaml:");
  await picture("explain");
  step = "a place in the output is a place in the input";
  await press("#result .place");
  await until("the line is selected", `document.activeElement.id === "new" && document.activeElement.selectionEnd > document.activeElement.selectionStart`);

  await press("#tab-diff");
  await shows("diff says what changes", "0 newly allowed");
  await shows("diff names the flow that is cut", "cut: shop/web-7d9c5b6f4d-zq8wn -> shop/db-0  TCP 6379");
  await picture("diff");
  await press("#tab-replay");
  await shows("replay names the dropped flow", "policy_denied");
  await until("the annotated capture can be saved", `document.querySelector("#actions button") !== null`);
  await picture("replay");
  await press("#tab-test");
  await shows("test judges the claims", "PASS nobody but the API reads the database");
  await press("#tab-learn");
  await shows("learn makes policies", "kind: NetworkPolicy", "result");

  step = "the other tabs are reached by the keyboard";
  await evaluate(`document.getElementById("tab-learn").focus()`);
  await tell("Input.dispatchKeyEvent", { type: "keyDown", key: "Home", code: "Home" });
  await until("Home chooses the first tab", `document.activeElement.id === "tab-matrix" && document.activeElement.ariaSelected === "true"`);

  await screen(390, 844, "dark");
  await until("the page is not wider than a phone", `document.documentElement.scrollWidth <= 390`);
  await evaluate(`window.scrollTo(0, document.querySelector(".answers").offsetTop - 8)`);
  await shows("the matrix is there", "allowed");
  await picture("phone");

  step = "another example, and its capture dropped";
  await evaluate(`(() => { const choice = document.getElementById("example"); choice.selectedIndex = 1; choice.dispatchEvent(new Event("change")); })()`);
  await until("the other example's matrix is there", `document.querySelector("[aria-label='default/frontend to default/db: deny']") !== null`);
  await press("#forget");
  await evaluate(`(() => {
    const bytes = Uint8Array.from(atob(document.querySelector('[data-path="pcaps/redis-policy/in.pcapng"]').textContent), (char) => char.charCodeAt(0));
    const dropped = new DataTransfer();
    dropped.items.add(new File([bytes], "my capture.pcapng"));
    document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true }));
  })()`);
  await shows("the capture has a name without spaces", "my_capture.pcapng", "captured");
  await shows("a dropped capture is replayed", "ingress isolated by default/network-policy-allow-backend");

  step = "an error names file and line";
  await evaluate(`(() => { const area = document.getElementById("state"); area.value = "kind: [Pod"; area.dispatchEvent(new Event("input")); document.getElementById("run").click(); })()`);
  await until("the error is shown", `!document.getElementById("error").hidden && /state\\.yaml:\\d+/.test(document.getElementById("error").textContent)`);
  await picture("error");

  const foreign = requested.filter((address) => address !== url && !address.startsWith("data:"));
  if (foreign.length > 0) throw new Error(`the page has requested ${foreign.join(", ")}`);
  if (complaints.length > 0) throw new Error(`the page complains: ${complaints.join("; ")}`);
  console.log("browser: the page works");
  end(0);
};

main().catch((error) => fail(error.message));
