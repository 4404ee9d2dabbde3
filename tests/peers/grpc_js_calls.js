// Drives @grpc/grpc-js against a server: node grpc_js_calls.js ADDRESS DESCRIPTORS; prints one JSON object.
"use strict";
const fs = require("fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, descriptors] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, defaults: true, oneofs: true };
const definition = loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(descriptors), options);
const packages = grpc.loadPackageDefinition(definition);
const credentials = grpc.credentials.createInsecure();
const client = new packages.inference.GRPCInferenceService(address, credentials);
const health = new packages.grpc.health.v1.Health(address, credentials);

function raw(values) {
  return Buffer.from(new Float32Array(values).buffer);
}

function request(model, values, id = "") {
  const inputs = [{ name: "INPUT0", datatype: "FP32", shape: [values.length] }];
  return { model_name: model, id, inputs, raw_input_contents: [raw(values)] };
}

function floats(response) {
  const bytes = response.raw_output_contents[0];
  return Array.from(new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)));
}

function unary(target, method, message, metadata = new grpc.Metadata(), callOptions = {}) {
  return new Promise((resolve) => {
    const seen = {};
    const call = target[method](message, metadata, callOptions, (error, response) => {
      resolve({ error: error ? { code: error.code, details: error.details } : null, response, seen });
    });
    call.on("status", (status) => (seen.trailers = status.metadata.getMap()));
    seen.call = call;
  });
}

async function stream(count) {
  return new Promise((resolve) => {
    const call = client.ModelStreamInfer();
    const answers = [];
    call.on("data", (message) =>
      answers.push({ id: message.infer_response.id, error: message.error_message }));
    call.on("status", (status) => resolve({ answers, code: status.code }));
    call.on("error", () => {});
    for (let index = 0; index < count; index += 1) call.write(request("identity", [index], `r${index}`));
    call.write(request("nope", [1], "bad"));
    call.end();
  });
}

async function cancelled() {
  return new Promise((resolve) => {
    const call = client.ModelInfer(request("slow", [1]), (error) => resolve(error ? error.code : 0));
    setTimeout(() => call.cancel(), 50);
  });
}

async function main() {
  const report = {};
  report.version = require("@grpc/grpc-js/package.json").version;
  report.live = (await unary(client, "ServerLive", {})).response.live;
  report.health = (await unary(health, "Check", { service: "" })).response.status;
  report.infer = floats((await unary(client, "ModelInfer", request("identity", [1.5, -2]))).response);
  const large = new Array(500000).fill(0).map((_, index) => index % 97);
  report.large = floats((await unary(client, "ModelInfer", request("identity", large))).response).reduce((a, b) => a + b);
  report.many = (await Promise.all(
    new Array(300).fill(0).map((_, index) => unary(client, "ModelInfer", request("identity", [index])))
  )).map((answer) => floats(answer.response)[0]);
  report.unknown = (await unary(client, "ModelInfer", request("nope", [1]))).error;
  report.deadline = (await unary(client, "ModelInfer", request("slow", [1]), new grpc.Metadata(), {
    deadline: Date.now() + 100,
  })).error.code;
  const metadata = new grpc.Metadata();
  metadata.set("x-isochrone-timing", "1");
  metadata.set("some-binary-bin", Buffer.from([0, 255, 7]));
  report.timing = (await unary(client, "ModelInfer", request("identity", [1]), metadata)).seen.trailers;
  report.stream = await stream(50);
  report.cancelled = await cancelled();
  report.after = floats((await unary(client, "ModelInfer", request("identity", [7]))).response);
  console.log(JSON.stringify(report));
  client.close();
  health.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
