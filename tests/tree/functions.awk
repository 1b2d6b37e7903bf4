# SPDX-License-Identifier: Apache-2.0
# functions.awk: reads the names of C, C++, CUDA, OpenCL and GLSL sources, a line each, and writes
# how many lines of code their parts have:
#   function LINES FILE:LINE   a function, with the lambdas in it
#   body LINES FILE:LINE       a kernel in the dialect, TESS_..._KERNEL, without its stages
#   stage LINES FILE           an .inl file that is included inside of a function
#   macro LINES FILE:LINE      a macro
# Comments, empty lines and directives do not count, and a macro counts for itself alone. A `{`
# begins a function where no other is open and a parameter list stands before it, as clang-format
# leaves it. Each branch of an #if goes on from the same braces.

# The line without comments and literals.
function code_of(line,   code, at, size, mark) {
  code = ""
  while (line != "") {
    if (in_comment) {
      at = index(line, "*/")
      if (!at) return code
      line = substr(line, at + 2)
      in_comment = 0
    } else if (match(line, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\//)) {
      at = RSTART
      size = RLENGTH
      mark = substr(line, at, 2)
      code = code substr(line, 1, at - 1)
      if (mark == "//") return code
      if (mark == "/*") in_comment = 1
      else code = code "0"
      line = substr(line, at + size)
    } else {
      return code line
    }
  }
  return code
}

# What a brace begins where no function is open, by the code before it.
function kind_of(head) {
  if (head ~ /TESS_[A-Z_]*KERNEL[ \t]*$/) return "body"
  if (head ~ /\)[ \t]*((const|noexcept|override|mutable)[ \t]*)*(->[^()]*)?$/) return "function"
  if (head ~ /\)[ \t]*:[^:]/) return "function" # a constructor
  return "scope"
}

# Follows the braces of a line of code.
function follow(code,   brace) {
  while (match(code, /[{};]/)) {
    brace = substr(code, RSTART, 1)
    head = head " " substr(code, 1, RSTART - 1)
    code = substr(code, RSTART + 1)
    if (brace == "{") {
      kinds[++depth] = function_at ? "inner" : kind_of(head)
      if (kinds[depth] == "body" || kinds[depth] == "function") {
        function_at = number
        function_lines = 1
      }
    } else if (brace == "}" && depth > 0) {
      if (kinds[depth] == "body" || kinds[depth] == "function") {
        found[++functions] = file
        report[functions] = kinds[depth] " " function_lines " " file ":" function_at
        function_at = 0
      }
      depth--
    }
    head = ""
  }
  head = head " " code
}

# Keeps the state of the braces at an #if, and goes back to it for its other branches.
function branch(word) {
  if (word ~ /^if/) {
    levels++
    kept_depth[levels] = depth
    kept_at[levels] = function_at
    kept_head[levels] = head
  } else if (word ~ /^el/ && levels > 0) {
    depth = kept_depth[levels]
    function_at = kept_at[levels]
    head = kept_head[levels]
  } else if (word == "endif" && levels > 0) {
    levels--
  }
}

# Takes note of an .inl file that is included inside of a function. These have names of their own.
function include(line,   name) {
  if (!match(line, /"[^"]+\.inl"/)) return
  name = substr(line, RSTART + 1, RLENGTH - 2)
  sub(/.*\//, "", name)
  if (!(name in path) || (name in stages)) return
  stages[name] = 1
  queue[++queued] = path[name]
}

# The first line of a directive.
function direct(line, is_stage,   word) {
  match(line, /#[ \t]*[a-z]*/)
  word = substr(line, RSTART + 1, RLENGTH - 1)
  gsub(/[ \t]/, "", word)
  branch(word)
  if (word == "include" && (is_stage || function_at)) include(line)
  macro_at = word == "define" ? number : 0
  macro_lines = 0
}

function measure(is_stage,   line, code, continued, total) {
  depth = levels = function_at = in_comment = continued = number = total = 0
  head = ""
  while ((getline line < file) > 0) {
    number++
    if (continued || (!in_comment && line ~ /^[ \t]*#/)) {
      if (!continued) direct(line, is_stage)
      if (code_of(line) ~ /[^ \t\\]/) macro_lines++
      continued = line ~ /\\$/
      if (!continued && macro_at && !is_stage) print "macro", macro_lines, file ":" macro_at
      continue
    }
    code = code_of(line)
    if (code !~ /[^ \t]/) continue
    total++
    if (is_stage) continue
    if (function_at) function_lines++
    follow(code)
  }
  close(file)
  if (is_stage) print "stage", total, file
  else if (depth != 0) print "unbalanced", depth, file
}

{
  files[++count] = $0
  name = $0
  sub(/.*\//, "", name)
  path[name] = $0
}
END {
  for (n = 1; n <= count; n++) {
    file = files[n]
    measure(0)
  }
  for (n = 1; n <= queued; n++) {
    file = queue[n]
    measure(1)
  }
  # What looks like a function in a stage is a loop of it.
  for (n = 1; n <= functions; n++) {
    name = found[n]
    sub(/.*\//, "", name)
    if (!(name in stages)) print report[n]
  }
}
