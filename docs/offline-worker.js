// Browsers do not allow workers in pages that are opened from disk (file://). There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(address, document.baseURI);
        script.onload = () => resolve(inner);
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
  };
}
