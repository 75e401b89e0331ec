"""Plain training scripts made by chance, run beside plain torch: who finds one that differs?"""
