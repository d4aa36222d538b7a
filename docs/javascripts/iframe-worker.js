// A browser gives no Worker to pages from the disk. The search's worker then runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      const begin = () => {
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = () => {
          this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }))
          this.waiting.splice(0).forEach((data) => this.postMessage(data))
        }
        inside.document.body.append(script)
      }
      const attach = () => (document.body.append(frame), begin())
      document.body ? attach() : addEventListener("DOMContentLoaded", attach)
    }

    postMessage(data) {
      this.waiting.push(data)
    }

    set onmessage(heard) {
      this.addEventListener("message", heard)
    }
  }
}
