// Conversations in the browser's own storage; nothing of them is kept on the server.

const request = (r) =>
  new Promise((resolve, reject) => {
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });

let opened;
function database() {
  opened ??= new Promise((resolve, reject) => {
    const r = indexedDB.open("triax", 1);
    r.onupgradeneeded = () => r.result.createObjectStore("conversations", { keyPath: "id" });
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });
  return opened;
}

async function store(mode) {
  return (await database()).transaction("conversations", mode).objectStore("conversations");
}

/// Latest first.
export async function all() {
  const list = await request((await store("readonly")).getAll());
  return list.sort((a, b) => b.updated - a.updated);
}

export async function save(conversation) {
  await request((await store("readwrite")).put(structuredClone(conversation)));
}

export async function forget(id) {
  await request((await store("readwrite")).delete(id));
}
