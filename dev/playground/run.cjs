// Runs the program that is part of the page, with the page's WASI host, like a command line:
//
//   node dev/playground/run.cjs target/playground/index.html replay --state pcaps/shop/state.yaml --node node-1 pcaps/shop/in.pcap
//
// Reads the files and folders that the words name before the run, and writes the program's files after it.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");
const zlib = require("node:zlib");

const [page, ...words] = process.argv.slice(2);
const html = fs.readFileSync(page, "utf8");
const part = (id) => html.match(new RegExp(`<script[^>]* id="${id}"[^>]*>([^]*?)</script>`))[1];
const context = vm.createContext({ WebAssembly, TextEncoder, TextDecoder, performance, crypto: globalThis.crypto, Uint8Array, DataView, ArrayBuffer });
const wasi = vm.runInContext(part("wasi") + "\nwasi", context);
const program = new WebAssembly.Module(zlib.gunzipSync(Buffer.from(part("program"), "base64")));

const files = {};
const load = (name) => {
  const found = fs.statSync(name, { throwIfNoEntry: false });
  if (found?.isDirectory()) {
    for (const entry of fs.readdirSync(name)) load(path.join(name, entry));
  } else if (found?.isFile()) {
    files[name] = new Uint8Array(fs.readFileSync(name));
  }
};
words.forEach(load);
const stdin = words.includes("-") ? new Uint8Array(fs.readFileSync(0)) : undefined;
// A pipe accepts part of the bytes at a time.
const put = (fd, bytes) => {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(fd, bytes, done);
};
wasi.run(program, { args: ["bulkhead", ...words], files, stdin }).then(({ code, stdout, stderr, written }) => {
  for (const [name, bytes] of Object.entries(written)) {
    fs.writeFileSync(words.find((word) => wasi.clean(word) === name) ?? name, bytes);
  }
  put(1, stdout);
  put(2, stderr);
  process.exitCode = code;
});
