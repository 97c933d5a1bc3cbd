// What a filter's text means, as equigrad run reads it (conformance/cases/filter.hpp): a function of
// a row's text, or a string that says what is wrong.
var equigradFilter=function(text){
'use strict';
var word=function(part){
var source='',i,c,end;
for(i=0;i<part.length;i++){c=part[i];
end=c==='['?part.indexOf(']',i+(/[!^]/.test(part[i+1]||'')?3:2)):-1;
if(c==='*')source+='[^]*';else if(c==='?')source+='[^]';
else if(end>0){source+='['+part.slice(i+1,end).replace(/^!/,'^').replace(/[\\\]\[]/g,'\\$&')+']';i=end;}
else source+=c.replace(/[\\^$.|+(){}\[\]\/-]/g,'\\$&');}
var plain;try{plain=new RegExp(source);}catch(e){plain=/[]/;}
return function(names){return names.some(function(name){return plain.test(name);});};};
var steps=[],waiting=[],ended=false,last='',wrong='',
binds={not:1,and:2,or:3,'(':4},
end=function(most){while(waiting.length&&binds[waiting[waiting.length-1]]<=most)
steps.push(waiting.pop());};
(text.toLowerCase().match(/[()]|[^\s()]+/g)||[]).forEach(function(token){
var infix=token==='and'||token==='or';last=token;
if(!ended&&(infix||token===')'))wrong=wrong||'a word is missing before '+token;
if(ended&&!infix&&token!==')'){end(2);waiting.push('and');}
if(token===')'){end(3);if(!waiting.length)wrong=wrong||'a ( is missing';waiting.pop();}
else if(infix){end(binds[token]);waiting.push(token);}
else if(token==='('||token==='not')waiting.push(token);
else steps.push(word(token));
ended=!infix&&token!=='('&&token!=='not';});
if(!ended)wrong=wrong||(last?'a word is missing behind '+last:'no words');
end(3);
if(waiting.length)wrong=wrong||'a ) is missing';
if(wrong)return wrong;
return function(row){
var name=row.toLowerCase(),values=[],names=[name,
name.replace(/\.w(?=\d)/,'.world').replace(/\.zero(?=\d)/,'.stage')];
steps.forEach(function(step){
var b;
if(typeof step==='function'){values.push(step(names));return;}
b=values.pop();
if(step==='not')values.push(!b);
else{var a=values.pop();values.push(step==='and'?a&&b:a||b);}});
return values[0];};};
