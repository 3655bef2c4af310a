// A WASI (preview 1) host with an in-memory file system, limited to what the program needs to run as on a command line.
// Source: https://github.com/WebAssembly/WASI/blob/main/legacy/preview1/docs.md
//
//   await wasi.run(module, {args, files, stdin}) -> {code, stdout, stderr, written}
//
// `files` maps paths to bytes; the paths define the folders. `written` maps the files that the program has written. A leading `/` or `./`
// of a path makes no difference. The page and `run.cjs` use the same text.
"use strict";

const wasi = (() => {
  const OK = 0, AGAIN = 6, BADF = 8, EXIST = 20, INVAL = 28, ISDIR = 31, NOENT = 44, NOSYS = 52, NOTDIR = 54, SPIPE = 70;
  const UNKNOWN = 0, FOLDER = 3, FILE = 4;
  const CREATE = 1, DIRECTORY = 2, EXCLUSIVE = 4, TRUNCATE = 8;
  const APPEND = 1;
  // The only folder that is open at the start: `/`.
  const ROOT = 3;
  // Minimum number of bytes by which a file grows.
  const STEP = 1 << 16;

  class Exit {
    constructor(code) { this.code = code; }
  }

  // `a/./b//c/..` is `a/b`.
  const clean = (path) => {
    const parts = [];
    for (const part of path.split("/")) {
      if (part === "..") parts.pop();
      else if (part !== "" && part !== ".") parts.push(part);
    }
    return parts.join("/");
  };

  // Bytes in a growing buffer.
  class Data {
    constructor(bytes = new Uint8Array(0)) { this.bytes = bytes; this.length = bytes.length; }
    write(at, bytes) {
      const end = at + bytes.length;
      if (end > this.bytes.length) {
        const larger = new Uint8Array(Math.max(end + STEP, 2 * this.bytes.length));
        larger.set(this.bytes.subarray(0, this.length));
        this.bytes = larger;
      }
      this.bytes.set(bytes, at);
      this.length = Math.max(this.length, end);
    }
    all() { return this.bytes.subarray(0, this.length); }
  }

  class Files {
    constructor(files) {
      this.files = new Map();
      this.folders = new Set([""]);
      this.written = new Set();
      for (const [path, bytes] of Object.entries(files)) this.add(clean(path), new Data(bytes));
    }
    add(path, data) {
      this.files.set(path, data);
      for (let at = path.lastIndexOf("/"); at > 0; at = path.lastIndexOf("/", at - 1)) this.folders.add(path.slice(0, at));
    }
    kind(path) { return this.files.has(path) ? FILE : this.folders.has(path) ? FOLDER : undefined; }
    // Lists the direct entries of a folder, in order.
    list(folder) {
      const prefix = folder === "" ? "" : folder + "/";
      const inside = (path) => path !== "" && path.startsWith(prefix) && !path.slice(prefix.length).includes("/");
      const of = (paths, kind) => [...paths].filter(inside).map((path) => ({ name: path.slice(prefix.length), kind }));
      return [...of(this.files.keys(), FILE), ...of(this.folders, FOLDER)].sort((a, b) => (a.name < b.name ? -1 : 1));
    }
  }

  const run = async (module, { args, files = {}, stdin = new Uint8Array(0) }) => {
    const tree = new Files(files);
    const stdout = new Data(), stderr = new Data();
    const open = new Map([
      [0, { data: new Data(stdin), at: 0, stream: true }],
      [1, { data: stdout, at: 0, stream: true }],
      [2, { data: stderr, at: 0, stream: true }],
      [ROOT, { folder: "" }],
    ]);
    let next = ROOT + 1;
    let memory;
    const words = args.map((word) => new TextEncoder().encode(word + "\0"));
    // A view of the memory is valid until the program grows it, so each call creates one.
    const view = () => new DataView(memory.buffer);
    const bytes = (at, length) => new Uint8Array(memory.buffer, at, length);
    const text = (at, length) => new TextDecoder().decode(bytes(at, length).slice());
    const path = (fd, at, length) => {
      const handle = open.get(fd);
      return handle?.folder === undefined ? undefined : clean(handle.folder + "/" + text(at, length));
    };
    const vectors = (at, count) => {
      const memory = view();
      return Array.from({ length: count }, (_, i) => bytes(memory.getUint32(at + 8 * i, true), memory.getUint32(at + 8 * i + 4, true)));
    };
    const stat = (at, kind, size) => {
      bytes(at, 64).fill(0);
      view().setUint8(at + 16, kind);
      view().setBigUint64(at + 24, 1n, true);
      view().setBigUint64(at + 32, BigInt(size), true);
      return OK;
    };

    const read = (handle, position, at, count, result) => {
      let total = 0;
      for (const part of vectors(at, count)) {
        const some = handle.data.all().subarray(position + total, position + total + part.length);
        part.set(some);
        total += some.length;
      }
      view().setUint32(result, total, true);
      return total;
    };
    const write = (handle, position, at, count, result) => {
      let total = 0;
      for (const part of vectors(at, count)) {
        handle.data.write(position + total, part);
        total += part.length;
      }
      view().setUint32(result, total, true);
      return total;
    };

    const calls = {
      args_sizes_get(count, size) {
        view().setUint32(count, words.length, true);
        view().setUint32(size, words.reduce((sum, word) => sum + word.length, 0), true);
        return OK;
      },
      args_get(pointers, buffer) {
        for (const word of words) {
          view().setUint32(pointers, buffer, true);
          bytes(buffer, word.length).set(word);
          pointers += 4;
          buffer += word.length;
        }
        return OK;
      },
      environ_sizes_get(count, size) {
        view().setUint32(count, 0, true);
        view().setUint32(size, 0, true);
        return OK;
      },
      environ_get: () => OK,
      clock_time_get(clock, _precision, result) {
        const now = clock === 0 ? Date.now() : performance.now();
        view().setBigUint64(result, BigInt(Math.round(now * 1e6)), true);
        return OK;
      },
      random_get(at, length) {
        // A call returns at most this number of bytes. Source: https://www.w3.org/TR/WebCryptoAPI/#Crypto-method-getRandomValues
        const most = 65536;
        for (let done = 0; done < length; done += most) crypto.getRandomValues(bytes(at + done, Math.min(most, length - done)));
        return OK;
      },
      sched_yield: () => OK,
      proc_exit(code) { throw new Exit(code); },

      fd_prestat_get(fd, result) {
        if (fd !== ROOT) return BADF;
        view().setUint8(result, 0);
        view().setUint32(result + 4, 1, true);
        return OK;
      },
      fd_prestat_dir_name(fd, at) {
        if (fd !== ROOT) return BADF;
        bytes(at, 1)[0] = "/".charCodeAt(0);
        return OK;
      },
      fd_fdstat_get(fd, result) {
        const handle = open.get(fd);
        if (!handle) return BADF;
        bytes(result, 24).fill(0);
        // A stream is not a terminal, so the program writes as to a file.
        view().setUint8(result, handle.stream ? UNKNOWN : handle.folder === undefined ? FILE : FOLDER);
        view().setBigUint64(result + 8, ~0n & 0xffffffffffffffffn, true);
        view().setBigUint64(result + 16, ~0n & 0xffffffffffffffffn, true);
        return OK;
      },
      fd_fdstat_set_flags: () => OK,
      fd_filestat_get(fd, result) {
        const handle = open.get(fd);
        if (!handle) return BADF;
        return handle.data ? stat(result, handle.stream ? UNKNOWN : FILE, handle.data.length) : stat(result, FOLDER, 0);
      },
      fd_close: (fd) => (open.delete(fd) ? OK : BADF),
      fd_read(fd, at, count, result) {
        const handle = open.get(fd);
        if (!handle) return BADF;
        if (!handle.data) return ISDIR;
        handle.at += read(handle, handle.at, at, count, result);
        return OK;
      },
      fd_pread(fd, at, count, position, result) {
        const handle = open.get(fd);
        if (!handle?.data) return BADF;
        read(handle, Number(position), at, count, result);
        return OK;
      },
      fd_write(fd, at, count, result) {
        const handle = open.get(fd);
        if (!handle?.data) return BADF;
        if (handle.stream || handle.append) handle.at = handle.data.length;
        handle.at += write(handle, handle.at, at, count, result);
        return OK;
      },
      fd_seek(fd, offset, whence, result) {
        const handle = open.get(fd);
        if (!handle?.data) return BADF;
        if (handle.stream) return SPIPE;
        const position = [0, handle.at, handle.data.length][whence] + Number(offset);
        if (!(position >= 0)) return INVAL;
        handle.at = position;
        view().setBigUint64(result, BigInt(position), true);
        return OK;
      },
      fd_readdir(fd, at, length, cookie, result) {
        const handle = open.get(fd);
        if (handle?.folder === undefined) return BADF;
        const out = new Data();
        const entries = tree.list(handle.folder);
        for (let i = Number(cookie); i < entries.length && out.length < length; i += 1) {
          const name = new TextEncoder().encode(entries[i].name);
          const head = new DataView(new ArrayBuffer(24));
          head.setBigUint64(0, BigInt(i + 1), true);
          head.setUint32(16, name.length, true);
          head.setUint8(20, entries[i].kind);
          out.write(out.length, new Uint8Array(head.buffer));
          out.write(out.length, name);
        }
        // An entry that does not fit is truncated. The program then continues from that entry.
        const some = out.all().subarray(0, length);
        bytes(at, length).set(some);
        view().setUint32(result, some.length, true);
        return OK;
      },

      path_open(fd, _follow, at, length, how, _rights, _inherited, flags, result) {
        const name = path(fd, at, length);
        if (name === undefined) return NOTDIR;
        const kind = tree.kind(name);
        if (kind === FOLDER) {
          if (how & (CREATE | TRUNCATE)) return ISDIR;
          open.set(next, { folder: name });
        } else {
          if (how & DIRECTORY) return kind === undefined ? NOENT : NOTDIR;
          if (kind === FILE && how & CREATE && how & EXCLUSIVE) return EXIST;
          if (kind === undefined && !(how & CREATE)) return NOENT;
          if (kind === undefined || how & TRUNCATE) {
            tree.add(name, new Data());
            tree.written.add(name);
          }
          open.set(next, { data: tree.files.get(name), at: 0, append: flags & APPEND });
        }
        view().setUint32(result, next, true);
        next += 1;
        return OK;
      },
      path_filestat_get(fd, _follow, at, length, result) {
        const name = path(fd, at, length);
        if (name === undefined) return NOTDIR;
        const kind = tree.kind(name);
        return kind === undefined ? NOENT : stat(result, kind, kind === FILE ? tree.files.get(name).length : 0);
      },
      path_create_directory(fd, at, length) {
        const name = path(fd, at, length);
        if (name === undefined) return NOTDIR;
        if (tree.kind(name) !== undefined) return EXIST;
        tree.folders.add(name);
        return OK;
      },
      // The file system has no links.
      path_readlink: () => INVAL,
    };

    // Symbols that an older C library lacks (`absent-symbols`). The program has no threads.
    const threads = {
      pthread_attr_init: () => OK,
      pthread_attr_setstacksize: () => OK,
      pthread_attr_destroy: () => OK,
      pthread_create: () => AGAIN,
      pthread_detach: () => OK,
      pthread_join: () => INVAL,
    };

    const imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      imports[from] ??= {};
      imports[from][name] = calls[name] ?? threads[name] ?? (() => NOSYS);
    }
    // Not `new WebAssembly.Instance`: on the main thread, Chromium limits it to modules of 8 MB.
    const instance = await WebAssembly.instantiate(module, imports);
    memory = instance.exports.memory;
    let code = 0;
    try {
      instance.exports._start();
    } catch (error) {
      if (error instanceof Exit) {
        code = error.code;
      } else {
        // A trap. The program may have printed the reason.
        code = 134;
        stderr.write(stderr.length, new TextEncoder().encode(`\n${error}\n`));
      }
    }
    const written = {};
    for (const name of tree.written) written[name] = tree.files.get(name).all();
    return { code, stdout: stdout.all(), stderr: stderr.all(), written };
  };

  return { run, clean };
})();

if (typeof module !== "undefined") module.exports = wasi;
