// Brings the page up to date, counts ages and times left, sends a search while its user types, and shows confirmations
// in a dialog. Without it, everything works by reloading. All HTML is made by the server.
"use strict";
(() => {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const announcements = document.getElementById("announcements");
  const dialog = document.getElementById("dialog");

  // The clock of the server, as far as this machine's differs from it.
  let ahead = Number(live.dataset.now) - Date.now();

  function describeDuration(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s >= 86400) return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
    if (s >= 3600) return `${Math.floor(s / 3600)}h ${Math.floor((s % 3600) / 60)}m`;
    if (s >= 60) return `${Math.floor(s / 60)}m ${s % 60}s`;
    return `${s}s`;
  }

  function countTimes() {
    const now = Date.now() + ahead;
    const set = (e, ms) => {
      const text = describeDuration(ms);
      if (e.textContent !== text) e.textContent = text;
    };
    for (const e of live.querySelectorAll("time[data-since]")) set(e, now - Number(e.dataset.since));
    for (const e of live.querySelectorAll("time[data-until]")) set(e, Number(e.dataset.until) - now);
  }

  // change makes the node old look like the node fresh. What is equal stays, and with it the focus. Elements with a key
  // are found by it wherever they are. news collects what is said aloud.
  function change(old, fresh, news) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (fresh.dataset && fresh.dataset.news && fresh.dataset.news !== old.dataset.news) {
      news.push(fresh.dataset.news);
      mark(old);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "class" && old.classList.contains("changed"))) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !(name === "class" && old.classList.contains("changed"))) {
        old.setAttribute(name, value);
      }
    }
    changeChildren(old, fresh, news);
  }

  const keyOf = (n) => (n.nodeType === Node.ELEMENT_NODE && n.dataset && n.dataset.key) || "";

  function changeChildren(old, fresh, news) {
    const keyed = new Map();
    for (const n of old.childNodes) if (keyOf(n)) keyed.set(keyOf(n), n);
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      let match = key ? keyed.get(key) : at;
      if (!key && match && keyOf(match)) match = null;
      if (!match) {
        old.insertBefore(wanted, at);
        if (key && wanted.dataset.news) {
          news.push(wanted.dataset.news);
          mark(wanted);
        }
        continue;
      }
      keyed.delete(key);
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      change(match, wanted, news);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    for (const n of keyed.values()) n.remove();
  }

  function mark(e) {
    if (e.nodeName !== "TR") return;
    e.classList.remove("changed");
    requestAnimationFrame(() => e.classList.add("changed"));
    setTimeout(() => e.classList.remove("changed"), 2500);
  }

  function announce(news) {
    if (news.length === 0) return;
    const most = 3;
    announcements.textContent = news.length <= most ? news.join(". ") : `${news.length} lines have changed`;
  }

  async function read(url) {
    const answer = await fetch(url, { headers: { Accept: "text/html" }, cache: "no-store", credentials: "same-origin" });
    const text = await answer.text();
    return { ok: answer.ok, document: new DOMParser().parseFromString(text, "text/html") };
  }

  // refresh reads this page again. It ends when a read has ended that began after the call. One read is under way at a
  // time.
  let running = null;
  let wanted = false;
  let quiet = false; // the changes are those of a search, and need not be said aloud
  function refresh() {
    wanted = true;
    if (!running) {
      running = (async () => {
        while (wanted) {
          wanted = false;
          await readPage();
        }
        running = null;
      })();
    }
    return running;
  }

  async function readPage() {
    try {
      const { ok, document: fresh } = await read(location.href);
      const part = fresh.getElementById("live");
      if (!ok || !part) {
        const problem = fresh.querySelector(".problem");
        showConnection(problem ? problem.textContent : "The server reports an error.", "alarm");
        return;
      }
      const news = [];
      ahead = Number(part.dataset.now) - Date.now();
      changeChildren(live, part, news);
      const asOf = fresh.getElementById("as-of");
      if (asOf) change(document.getElementById("as-of"), asOf, []);
      countTimes();
      if (!quiet) announce(news);
    } catch {
      showConnection("not live: the server does not answer", "alarm");
    }
  }

  function showConnection(words, className) {
    connection.className = `badge ${className}`;
    if (connection.textContent !== words) connection.textContent = words;
  }

  // The stream of events. A page in the background has none, because browsers allow few connections per server.
  let events = null;
  function listen() {
    if (!live.dataset.events || events || document.hidden) return;
    events = new EventSource(`/events?of=${live.dataset.events}`);
    events.addEventListener("open", () => {
      showConnection("live", "held");
      refresh();
    });
    events.addEventListener("change", () => {
      showConnection("live", "held");
      refresh();
    });
    events.addEventListener("error", () => {
      showConnection("not live: connecting again", "alarm");
      if (events && events.readyState === EventSource.CLOSED) {
        events = null;
        setTimeout(listen, 5000);
      }
    });
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      listen();
    } else if (events) {
      events.close();
      events = null;
    }
  });

  // A search is sent while its user types.
  const search = document.querySelector("form.search");
  let typed = 0;
  async function sendSearch() {
    const url = new URL(search.action);
    for (const [name, value] of new FormData(search)) if (value) url.searchParams.set(name, value);
    history.replaceState(null, "", url);
    quiet = true;
    await refresh();
    quiet = false;
    const count = live.querySelector(".pager, .empty");
    if (count) announcements.textContent = count.textContent;
  }
  if (search && new URL(search.action).pathname === "/") {
    search.addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(sendSearch, 200);
    });
    search.addEventListener("submit", (e) => {
      e.preventDefault();
      clearTimeout(typed);
      sendSearch();
    });
  }

  // A confirmation is shown in a dialog. It is the same form that the page of the link has.
  document.addEventListener("click", async (e) => {
    const cancel = e.target.closest && e.target.closest("dialog [data-cancel]");
    if (cancel) {
      e.preventDefault();
      dialog.close();
      return;
    }
    const link = e.target.closest && e.target.closest("a[data-confirm]");
    if (!link || e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
    e.preventDefault();
    let part = null;
    try {
      part = (await read(link.href)).document.querySelector("#confirmation, .problem");
    } catch {
      part = null;
    }
    if (!part || part.id !== "confirmation") {
      location.href = link.href; // the page says what is wrong
      return;
    }
    dialog.replaceChildren(part);
    dialog.showModal();
    part.querySelector("h1").focus();
  });
  dialog.addEventListener("close", () => dialog.replaceChildren());

  // A note of what was done is shown once.
  const url = new URL(location.href);
  if (url.searchParams.has("done")) {
    url.searchParams.delete("done");
    url.searchParams.delete("by");
    history.replaceState(null, "", url);
  }

  countTimes();
  setInterval(countTimes, 1000);
  listen();
})();
