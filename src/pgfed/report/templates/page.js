(async () => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // -- data and plotly come compressed inside this page ----------------------------------------

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  let groups;
  try {
    groups = JSON.parse(await unpack("data"));
    const script = document.createElement("script");
    script.textContent = await unpack("library");
    document.head.append(script);
  } catch (error) {
    for (const plot of all(".plot")) plot.textContent = `This browser cannot draw the figure (${error.message}); the tables are complete.`;
    return;
  }

  // -- what is chosen --------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false; // paper is light
  const hidden = new Set(); // methods
  const views = {}; // figure -> number of its view
  const picked = groups.map(() => null); // per group: a client
  const drawn = new Set(); // plots that have been on the screen
  const coarse = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
  };
  const font = { family: getComputedStyle(document.body).fontFamily, size: 13 };
  const hover = { bgcolor: "#22272c", bordercolor: "#22272c", font: { color: "#fff", family: font.family } };

  function groupOf(element) {
    return Number(element.closest("[data-group]").dataset.group);
  }

  // A colour as it can be read on this page.
  function hue(colour) {
    if (Array.isArray(colour)) return colour.map(hue);
    return dark.matches && !printing ? groups[0].dark[colour] || colour : colour;
  }

  function draw(plot) {
    const { figure, panel, focus } = plot.dataset;
    const index = groupOf(plot);
    const panels = groups[index].figures[figure];
    const spec = (panels[panel] || panels[0])[views[figure] || 0]; // small multiples share one
    const shapes = [];
    let data = spec.data.map((trace) => shown(trace, picked[index], shapes));
    const layout = { ...spec.layout, shapes };
    if (focus) data = focused(data, focus, layout);
    if (spec.aside && plot.clientWidth < 560) data = halved(data, spec.aside, layout);
    if (spec.heat) layout.plot_bgcolor = "grey"; // a rectangle, to which the style sheet gives its colour
    if (spec.heat) plot.dataset.heat = spec.heat;
    else delete plot.dataset.heat;
    if (!plot.dataset.height) plot.dataset.height = plot.style.height;
    plot.style.height = spec.height ? `${spec.height}px` : plot.dataset.height;
    if (spec.ends && !focus) withLabels(plot, data, layout);
    else render(plot, data, layout);
    const legend = plot.closest("figure").querySelector(".legend");
    if (legend) legend.hidden = !spec.data.some((trace) => typeof trace.meta === "string");
    if (!drawn.has(plot)) {
      drawn.add(plot);
      plot.on("plotly_click", (event) => pick(index, clientOf(event.points[0])));
    }
  }

  function render(plot, data, layout) {
    const narrow = plot.clientWidth < 400; // the buttons would lie on the figure's own words
    const size = plot.clientWidth < 300 ? 11 : font.size;
    return Plotly.react(plot, data, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      ...layout,
      font: { ...font, size },
      hoverlabel: hover,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: hue("#646B76"), activecolor: hue("#646B76") },
      dragmode: coarse ? false : "zoom", // on a phone a finger scrolls the page
    }, { ...config, displayModeBar: narrow ? false : "hover" });
  }

  function shown(trace, client, shapes) {
    const method = typeof trace.meta === "string" ? trace.meta : null;
    const result = { ...trace, visible: !(method !== null && hidden.has(method)) };
    for (const part of ["line", "marker", "error_x"]) {
      if (trace[part] && trace[part].color) result[part] = { ...trace[part], color: hue(trace[part].color) };
    }
    if (client === null) return result;
    if (trace.meta && trace.meta.order) {
      const at = trace.meta.order.indexOf(client);
      if (at >= 0) for (const axis of trace.meta.axes) shapes.push(frame(axis, at));
    } else if (trace.customdata) {
      const at = trace.customdata.findIndex((entry) => entry[0] === client);
      if (at >= 0) {
        const faint = trace.mode === "lines" ? 0 : 0.3;
        if (trace.mode === "lines") result.mode = "lines+markers";
        result.selectedpoints = [at];
        result.selected = { marker: { opacity: 1, ...(trace.type === "scatter" ? { size: 13 } : {}) } };
        result.unselected = { marker: { opacity: faint } };
      }
    }
    return result;
  }

  // On a narrow screen the main half alone.
  function halved(data, aside, layout) {
    delete layout[aside.replace("x", "xaxis")];
    layout.xaxis = { ...layout.xaxis, domain: [0, 1] };
    layout.annotations = layout.annotations.filter((title) => !title.xref.startsWith(aside));
    return data.filter((trace) => trace.xaxis !== aside);
  }

  // Small multiples: one method in its colour, on top of all others in grey.
  function focused(data, method, layout) {
    for (const axis of ["xaxis", "yaxis"]) layout[axis] = { ...layout[axis], title: undefined, nticks: 5, dtick: undefined };
    const own = data.filter((trace) => trace.meta === method)
      .map((trace) => ({ ...trace, line: { ...trace.line, dash: "solid" } }));
    const others = data.filter((trace) => trace.meta !== method && trace.line.width > 1).map((trace) => ({
      ...trace, opacity: 0.4, hoverinfo: "skip", hovertemplate: undefined,
      line: { color: hue("#646B76"), width: 1 },
    }));
    return [...others, ...own];
  }

  // -- lines are labelled where they end -------------------------------------------------------

  const LINE = 16; // pixels of a label's line
  const pen = document.createElement("canvas").getContext("2d");

  function withLabels(plot, data, layout) {
    pen.font = `12px ${font.family}`;
    const lines = data.filter((trace) => trace.visible && trace.line.width > 1 && trace.x.length);
    const width = Math.max(0, ...lines.map((trace) => pen.measureText(`= ${trace.meta}`).width));
    const r = Math.min(width + 34, 0.42 * plot.clientWidth);
    render(plot, data, { ...layout, margin: { ...layout.margin, r } });
    const axes = plot._fullLayout;
    const span = Math.abs(axes.yaxis.range[1] - axes.yaxis.range[0]);
    const labels = [];
    for (const trace of [...lines].reverse()) { // the best first
      const last = trace.y.findLastIndex((value) => value !== null);
      if (last < 0) continue;
      const twin = labels.find((label) => alike(label.trace, trace, 0.004 * span));
      const sign = twin && alike(twin.trace, trace, 1e-9) ? "=" : "≈";
      if (twin) twin.names.push(`${sign} ${trace.meta}`);
      else labels.push({ trace, names: [trace.meta], x: trace.x[last], y: trace.y[last] });
    }
    for (const label of labels) {
      label.place = Math.round(axes.xaxis.l2p(label.x) / 80);
      label.at = label.top = axes.yaxis.l2p(label.y) - (LINE * label.names.length) / 2;
    }
    for (const place of new Set(labels.map((label) => label.place))) {
      spread(labels.filter((label) => label.place === place), axes.yaxis._length);
    }
    Plotly.relayout(plot, {
      annotations: [...(layout.annotations || []), ...labels.map(annotation)],
      "xaxis.range": [...axes.xaxis.range], // labels stand in the margin and stretch nothing
      "yaxis.range": [...axes.yaxis.range],
    });
  }

  // Whether two lines lie on one another.
  function alike(a, b, tolerance) {
    return a.y.length === b.y.length && a.x.every((x, k) => x === b.x[k])
      && a.y.every((value, k) => value !== null && b.y[k] !== null && Math.abs(value - b.y[k]) <= tolerance);
  }

  // Move labels apart, each as little as need be, in the order in which the lines end.
  function spread(labels, height) {
    labels.sort((a, b) => b.y - a.y || a.top - b.top);
    let free = -LINE;
    for (const label of labels) {
      label.top = Math.max(label.top, free);
      free = label.top + LINE * label.names.length;
    }
    let end = height + LINE;
    for (const label of [...labels].reverse()) {
      label.top = Math.min(label.top, end - LINE * label.names.length);
      end = label.top;
    }
  }

  function annotation(label) {
    const colour = label.trace.line.color;
    return {
      x: label.x, y: label.y, ax: 18, ay: label.top - label.at,
      text: `<span style="color:${colour}">${label.names.map(escape).join("<br>")}</span>`,
      font: { size: 12 }, xanchor: "left", align: "left", borderpad: 0,
      showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: colour, standoff: 3,
    };
  }

  function frame(axis, at) {
    const other = axis === "x" ? "y" : "x";
    return {
      type: "rect",
      [`${axis}0`]: at - 0.5, [`${axis}1`]: at + 0.5,
      [`${other}0`]: 0, [`${other}1`]: 1, [`${other}ref`]: "paper",
      line: { color: hue("#8F6400"), width: 2 },
    };
  }

  function clientOf(point) {
    const order = point.data.meta && point.data.meta.order;
    if (order) return order[point.pointNumber[point.data.meta.axes[0] === "x" ? 1 : 0]];
    return point.customdata ? point.customdata[0] : null;
  }

  function redraw(keep = () => true) {
    for (const plot of drawn) if (keep(plot)) draw(plot);
  }

  // -- choosing --------------------------------------------------------------------------------

  for (const select of all("select[data-figure]")) {
    select.addEventListener("change", () => {
      views[select.dataset.figure] = Number(select.value);
      redraw((plot) => plot.dataset.figure === select.dataset.figure);
      if (select.dataset.figure.endsWith("matrix")) showClient(groupOf(select));
    });
  }

  for (const button of all(".legend [data-method]")) {
    button.addEventListener("click", () => {
      if (!hidden.delete(button.dataset.method)) hidden.add(button.dataset.method);
      showMethods();
    });
  }

  for (const button of all(".legend .all")) {
    button.addEventListener("click", () => {
      const methods = all("[data-method]", button.parentElement).map((other) => other.dataset.method);
      const hide = !methods.some((method) => hidden.has(method));
      for (const method of methods) if (hide) hidden.add(method); else hidden.delete(method);
      showMethods();
    });
  }

  function showMethods() {
    for (const button of all(".legend [data-method]")) {
      button.setAttribute("aria-pressed", !hidden.has(button.dataset.method));
    }
    for (const row of all("tr[data-method]")) {
      row.classList.toggle("off", hidden.has(row.dataset.method));
    }
    groups.forEach((_, index) => showClient(index));
    redraw();
  }

  function relit() {
    for (const line of all(".legend line")) line.setAttribute("stroke", hue(line.dataset.colour));
    groups.forEach((_, index) => showClient(index));
    redraw();
  }
  dark.addEventListener("change", relit);

  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(redraw, 200);
  });

  for (const select of all("select.pick")) {
    select.addEventListener("change", () => {
      pick(groupOf(select), select.value === "" ? null : Number(select.value));
    });
  }

  function pick(index, client) {
    if (client === undefined || client === null && picked[index] === null) return;
    picked[index] = client;
    const name = client === null ? null : groups[index].clients.names[client];
    for (const row of all(`.group[data-group="${index}"] tr[data-client]`)) {
      row.classList.toggle("chosen", row.dataset.client === name);
    }
    const hash = name === null ? "" : `#client=${encodeURIComponent(name)}`;
    if (decodeURIComponent(location.hash) !== decodeURIComponent(hash)) history.replaceState(null, "", hash || location.pathname + location.search);
    const select = document.querySelector(`.client[data-group="${index}"] select`);
    if (select) select.value = client === null ? "" : String(client);
    showClient(index);
    redraw((plot) => groupOf(plot) === index);
  }

  // #client=NAME opens a client, wherever there is one of that name.
  function fromAddress() {
    const found = location.hash.match(/^#client=(.*)$/);
    if (!found) return;
    const name = decodeURIComponent(found[1]);
    groups.forEach((group, index) => {
      const client = group.clients.names.indexOf(name);
      if (client < 0) return;
      pick(index, client);
      const box = document.querySelector(`.client[data-group="${index}"]`);
      if (box) box.scrollIntoView({ block: "start" });
    });
  }
  addEventListener("hashchange", fromAddress);

  function make(tag, text, parent) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text; // names are the user's: never as HTML
    if (parent) parent.append(element);
    return element;
  }

  function showClient(index) {
    const box = document.querySelector(`.client[data-group="${index}"] .picked`);
    const client = picked[index];
    if (!box) return;
    box.replaceChildren();
    const about = groups[index].clients;
    if (client === null || client >= about.names.length) return;
    const number = (value) => value.toLocaleString("en");
    const domain = about.domains ? `, domain ${about.domains[client]}` : "";
    make("p", `Client ${about.names[client]}${domain}: ${number(about.n_train[client])} training and ${number(about.n_test[client])} test samples.`, box);
    if (about.classes) {
      const held = about.classes[client].map(([name, n]) => `${name}: ${number(n)}`);
      make("p", `Classes: ${held.join(", ")}.`, box);
    }
    const scroll = make("div", undefined, box);
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    const table = make("table", undefined, scroll);
    const head = make("tr", undefined, make("thead", undefined, table));
    for (const title of ["Method", "Kept model", "Best on test", `Gain over ${about.over}`]) {
      const cell = make("th", undefined, head);
      cell.scope = "col";
      make("span", title, cell);
    }
    const body = make("tbody", undefined, table);
    for (const method of about.methods) {
      const row = make("tr", undefined, body);
      make("th", method.label, row).scope = "row";
      make("td", fixed(method.kept[client], about.digits), row);
      make("td", fixed(method.best[client], about.digits), row);
      make("td", signed(method.gain && method.gain[client], about.digits), row);
    }
    const grid = make("div", undefined, box);
    grid.className = "panels";
    // All places first, then the plots: a plot takes the width its place has when it is drawn.
    const plots = [...curves(index, client, grid), ...weights(index, client, grid)];
    for (const draw of plots) draw();
  }

  // A small plot in the picked client's box; returns what draws it.
  function small(parent, title, data, layout) {
    const part = make("div", undefined, parent);
    part.className = layout.type === "category" ? "part" : "part wide";
    make("p", title, part);
    const plot = make("div", undefined, part);
    plot.className = "plot";
    plot.style.height = "240px";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", title);
    const axis = (text) => ({ automargin: true, title: { text } });
    return () => render(plot, data, {
      margin: { l: 8, r: 8, t: 8, b: 8 },
      showlegend: false,
      hovermode: "closest",
      xaxis: { ...axis(layout.x), type: layout.type },
      yaxis: { ...axis(layout.y), zeroline: layout.type === "category" },
    });
  }

  function curves(index, client, parent) {
    const { clients, styles } = groups[index];
    const data = clients.methods.filter((method) => method.curves && !hidden.has(method.label)).map((method) => ({
      type: "scatter",
      mode: "lines",
      x: method.rounds,
      y: method.curves.map((row) => row[client]),
      text: method.rounds.map(() => escape(method.label)),
      meta: method.label,
      line: { color: hue(styles[method.label][0]), dash: styles[method.label][1], width: 2 },
      hovertemplate: `%{text}, round %{x}: %{y:.${clients.digits}f}<extra></extra>`,
    }));
    const axes = { x: "round", y: clients.axis, type: "linear" };
    return data.length ? [small(parent, "Its score over the rounds", data, axes)] : [];
  }

  // plotly reads a little HTML.
  function escape(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function fixed(value, digits) {
    return value === null || value === undefined ? "–" : value.toFixed(digits);
  }

  function signed(value, digits = 1) {
    const text = fixed(value, digits).replace("-", "−");
    return text === "–" || text.startsWith("−") ? text : `+${text}`;
  }

  // Row and column of A of one client, of the run that the matrix shows.
  function weights(index, client, parent) {
    const name = Object.keys(groups[index].figures).find((id) => id.endsWith("matrix"));
    if (!name) return [];
    const trace = groups[index].figures[name][0][views[name] || 0].data[0];
    const at = trace.meta ? trace.meta.order.indexOf(client) : -1;
    if (at < 0) return [];
    const plots = [];
    const row = trace.z[at], column = trace.z.map((line) => line[at]);
    for (const [title, values] of [
      ["Whom it weighs more or less than at the start: its row of A", row],
      ["Who weighs it more or less: its column of A", column],
    ]) {
      const met = values.map((value, k) => [value, trace.x[k]]).filter(([value]) => value !== null);
      met.sort((a, b) => b[0] - a[0]);
      if (!met.length) {
        make("p", `${title}: it met nobody.`, parent);
        continue;
      }
      plots.push(small(parent, title, [{
        type: "bar",
        x: met.map(([, other]) => other),
        y: met.map(([value]) => value),
        marker: { color: met.map(([value]) => hue(value >= 0 ? "#0072B2" : "#B84B00")) },
        hovertemplate: "client %{x}: %{y:+.4f}<extra></extra>",
      }], { x: "client", y: "change", type: "category" }));
    }
    return plots;
  }

  // -- drawing: when a plot comes near the screen, and all of them for the printer ---------------

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "800px" });
  const plots = all(".plot[data-figure]");
  for (const plot of plots) near.observe(plot);

  addEventListener("beforeprint", () => {
    printing = true;
    for (const plot of plots) {
      draw(plot);
      Plotly.relayout(plot, { width: plot.classList.contains("wide") ? 660 : 320 });
    }
  });
  addEventListener("afterprint", () => {
    printing = false;
    for (const plot of plots) Plotly.relayout(plot, { width: null, autosize: true });
    relit();
  });
  relit();
  fromAddress();
  document.documentElement.dataset.ready = "yes";
})();
