# SPDX-License-Identifier: Apache-2.0
"""`tessera tune` from the first measurement to plans that follow its file."""
import json

from command import CommandTest, main


class Tune(CommandTest):
    def test_plans_follow_the_file(self):
        """What is measured is a file that the library reads, and plans follow it."""
        done = self.succeed("tune", "--quick", "--backends", "cpu", "--out", self.path("t"),
                            env={"TESSERA_TUNE_FILE": self.path("t"), "TESSERA_KERNEL": "cpu/none",
                                 "TESSERA_CPU_THREADS": "1"})  # it takes as long, and less work
        self.assertEqual(self.files(), ["t"])
        self.assertRegex(done.out, r"cpu:0 +f32 +1\.\.64 +dense +17\.\. +cpu/")
        self.assertRegex(done.err, r"\[24/24\] cpu:0, dtype=bf16 ")
        with open(self.path("t"), "rb") as file:
            lines = file.read().decode().split("\n")
        self.assertEqual((lines[0], lines[-1]), ("tessera-tune 1", ""))
        rules = [line for line in lines[1:] if line and line[0] != "#"]
        self.assertTrue(all(line.endswith(" basis=measured") for line in rules))
        env = {"TESSERA_TUNE_FILE": self.path("t")}
        info = json.loads(self.succeed("info", "--json", env=env).out)
        self.assertEqual(info["tune_file_rules"], len(rules))
        cpu = [d for d in info["devices"] if d["id"] == "cpu:0"][0]
        self.assertEqual([r["rule"] for r in cpu["rules"]], rules)
        kernels = [k for k in cpu["kernels"] if k["status"] == "TESS_OK" and not k["only_named"]]
        self.assertEqual(len(rules), 24 if len(kernels) > 1 else 0)
        for rule in cpu["rules"]:
            self.assertEqual((rule["table"], rule["built_in"], rule["basis"], rule["rule"]),
                             (self.path("t"), False, "measured", lines[rule["line"] - 1]))
        if rules:
            env.update({"TESSERA_VERBOSE": "dispatch", "TESSERA_BACKEND": "cpu"})
            done = self.succeed("plan", "heads=2", "q_len=3", "kv_len=99", "head_dim=96",
                                "dtype=f16", "pattern=dense", env=env)
            shape = "dtype=f16 head_dim=65..128 pattern=dense q_len=..16"
            line, = [n + 1 for n, text in enumerate(lines) if shape in text]
            self.assertIn(f"is preferred by tune file {self.path('t')} line {line} (measured)",
                          done.err)


if __name__ == "__main__":
    main()
