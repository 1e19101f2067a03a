/* A worker for pages that are opened from a folder: browsers start none there. It runs in a hidden frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      this.inside = inside
      // What the script posts comes to the page, and what the page posts to the script.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.waiting = []
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, document.baseURI)
      script.onload = () => {
        for (const data of this.waiting) this.deliver(data)
        this.waiting = undefined
      }
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }

    deliver(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }
}
