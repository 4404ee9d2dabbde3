// Renders the templates of a chart with Go's text/template, which is Helm's engine, and the functions of Helm that they
// use. Input on stdin: {"templates": {path: text}, "data": {"Values": …, "Release": …}}; output: {path: text}.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

type input struct {
	Templates map[string]string `json:"templates"`
	Data      map[string]any    `json:"data"`
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	functions := template.FuncMap{
		// JSON is YAML.
		"toYaml": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"nindent": func(spaces int, text string) string {
			return "\n" + strings.Repeat(" ", spaces) + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", spaces))
		},
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
	}
	var given input
	fail(json.NewDecoder(os.Stdin).Decode(&given))
	rendered := map[string]string{}
	for path, text := range given.Templates {
		parsed, err := template.New(path).Funcs(functions).Option("missingkey=error").Parse(text)
		fail(err)
		var out strings.Builder
		fail(parsed.Execute(&out, given.Data))
		rendered[path] = out.String()
	}
	fail(json.NewEncoder(os.Stdout).Encode(rendered))
}
