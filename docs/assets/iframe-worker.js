/* Search without a server: a browser starts no worker for a page that is a file, so an iframe is one. */
if (location.protocol === "file:") {
  self.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const base = new URL(url, location)
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html><body></body>"
      this.ready = new Promise((done) => {
        frame.onload = () => {
          const inside = frame.contentWindow
          const load = (src) =>
            new Promise((loaded) => {
              const script = frame.contentDocument.createElement("script")
              script.onload = loaded
              script.src = new URL(src, base)
              frame.contentDocument.head.append(script)
            })
          inside.importScripts = (...urls) => Promise.all(urls.map(load))
          inside.postMessage = (data) => {
            const event = new MessageEvent("message", { data })
            this.dispatchEvent(event)
            this.onmessage?.(event)
          }
          load(base).then(() => done(inside))
        }
      })
      document.documentElement.append(frame)
    }
    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
