# SPDX-License-Identifier: Apache-2.0
"""Chromium without a screen, driven through chromedriver's own protocol (W3C WebDriver, which is
JSON over HTTP). Both come from Debian's packages chromium and chromium-driver."""
import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-extensions", "--disable-background-networking", "--disable-sync",
             "--no-first-run", "--disable-component-update", "--disable-default-apps",
             "--disable-dev-shm-usage", "--allow-file-access-from-files"]


def missing():
    """What of the two programs is not there, or an empty text."""
    names = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return " and ".join(names)


class Browser:
    def __init__(self, width=1280, height=900, dark=False, script=True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen([shutil.which("chromedriver"), f"--port={port}"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                if self.call("GET", "/status")["ready"]:
                    break
            except (OSError, KeyError):
                time.sleep(0.05)
        options = {"args": ARGUMENTS, "binary": shutil.which("chromium")}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + answer["sessionId"]
        self.look(width, height, dark, script)

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def tools(self, command, **parameters):
        """A call of the DevTools protocol."""
        return self.call("POST", self.session + "/goog/cdp/execute",
                         {"cmd": command, "params": parameters})

    def look(self, width, height=900, dark=False, script=True):
        """The size and the scheme of the window, and whether pages may run scripts."""
        self.tools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=width < 600)
        self.tools("Emulation.setEmulatedMedia", media="", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.tools("Emulation.setScriptExecutionDisabled", value=not script)

    def open(self, path, fragment=""):
        self.call("POST", self.session + "/url", {"url": "about:blank"})
        self.call("POST", self.session + "/url",
                  {"url": "file://" + os.path.abspath(path) + fragment})

    def value(self, expression):
        """The value of an expression, also where the page's own scripts are off."""
        answer = self.tools("Runtime.evaluate", expression=f"({expression})", returnByValue=True,
                            awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get(
                "description", answer["exceptionDetails"]["text"]))
        return answer["result"].get("value")

    def key(self, name, code=0):
        for kind in ("keyDown", "keyUp"):
            self.tools("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                       windowsVirtualKeyCode=code,
                       **({"text": "\r"} if name == "Enter" and kind == "keyDown" else {}))

    def errors(self):
        """What the console was told, this far."""
        log = self.call("POST", self.session + "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path, whole=False):
        size = self.tools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"],
                         "scale": 1}, "captureBeyondViewport": True} if whole else {}
        image = self.tools("Page.captureScreenshot", format="png", **clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(image))

    def paper(self, path=None):
        """Prints on A4; returns how many pages that takes."""
        data = base64.b64decode(self.tools("Page.printToPDF", preferCSSPageSize=True,
                                           printBackground=True)["data"])
        if path:
            with open(path, "wb") as file:
                file.write(data)
        return data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") or data.count(b"/Page/")

    def close(self):
        try:
            self.call("DELETE", self.session)
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        self.driver.wait(10)
